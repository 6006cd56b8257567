"""Python's garbage collector in processes that stream: going through all that is loaded would hold up every stream."""

import gc

THRESHOLDS = (10_000, 20, 50)  # new objects, and collections of the younger generation, before the next collection


def keep_what_is_loaded() -> None:
    """From now on collections go through what is made later, and seldom. `gc.unfreeze` takes the first part back."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
