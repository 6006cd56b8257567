"""Which figures of an eval a rule may name."""

from benchmarks.evals.registry import EVALS

SCORES = ("acc", "ppl", "bits_per_byte")  # made of documents, so that they have an uncertainty
SPEEDS = ("documents_per_second", "prompt_tokens_per_second", "output_tokens_per_second")  # every eval has them


def check_figure(task: str, metric: str) -> None:
    """Raises ValueError for a figure that runs of this eval do not have."""
    known = (*EVALS[task].figures, *SPEEDS)
    if metric not in known:
        raise ValueError(f"{task} has no figure {metric!r}, but {', '.join(known)}")
