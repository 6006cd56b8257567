"""A random checkpoint that likes some words, so that it gets some documents right and others wrong."""

from collections.abc import Iterable
from pathlib import Path

import torch

from inference.text.tokenizer import get_tokenizer

LEAN = 18.0  # what the bias gives the logits of the words' tokens; others are of the size of 4


def make_leaning_checkpoint(source: Path, path: Path, words: Iterable[str]) -> None:
    """Copy a checkpoint of `make_checkpoint`, but for its liking of `words`.

    The bias behind its last norm is a pattern that all rows of the head see alike.
    """
    tensors = torch.load(source, weights_only=True)
    bias, head = tensors["ln_out.bias"].float(), tensors["head.weight"]
    ids = sorted({token for word in words for token in get_tokenizer().encode(word)})
    rows = head[ids].float()
    likings = LEAN - rows @ bias  # what each row makes of the bias by itself would favour one of the words
    head[ids] = (rows + likings[:, None] * bias / (bias @ bias)).to(head.dtype)
    torch.save(tensors, path)
