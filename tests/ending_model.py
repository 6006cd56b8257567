"""A random checkpoint whose texts end by themselves, as those of trained models do."""

from pathlib import Path

import torch

# The ends of texts come after some dozen tokens at this logit; `make_checkpoint` gives them -40, which is never.
END_LOGIT = 15.0
NEVER_LOGIT = -40.0


def make_ending_checkpoint(source: Path, path: Path) -> None:
    """Copy a checkpoint of `make_checkpoint`, but for how likely the end of a text is."""
    tensors = torch.load(source, weights_only=True)
    tensors["head.weight"][0] *= END_LOGIT / NEVER_LOGIT
    torch.save(tensors, path)
