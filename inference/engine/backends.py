"""The back ends by name, and how one is chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from inference.engine.backend import Backend
from inference.engine.cuda_backend import CudaBackend
from inference.engine.torch_backend import TorchBackend
from inference.engine.weights import Progress

Choice = TypeVar("Choice")

# name -> factory of (checkpoint, slots, device, dtype, progress)
BACKENDS: dict[str, Callable[..., Backend]] = {
    "torch": TorchBackend,
    "cuda": CudaBackend,
}
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def create_backend(
    *,
    name: str = "auto",
    checkpoint: str | Path,
    slots: int = 0,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
) -> Backend:
    """Load `checkpoint` into a back end. `slots=0` takes as many as free memory allows.

    `device` is a torch device such as "cpu" or "cuda:1"; "auto" is the first GPU, else the CPU. `dtype` is float16,
    bfloat16, float32 or float64; "auto" is float16 on a GPU and float32 on a CPU. Raises ValueError for a name that is
    not known, and CheckpointError for a file that cannot be served.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "float32" if torch.device(device).type == "cpu" else "float16"
    if name == "auto":
        name = "cuda" if torch.device(device).type == "cuda" and torch.version.cuda else "torch"
    factory = _pick("back end", name, BACKENDS)
    return factory(checkpoint, slots, device, _pick("dtype", dtype, DTYPES), progress)


def _pick(kind: str, name: str, choices: dict[str, Choice]) -> Choice:
    if name not in choices:
        raise ValueError(f"{kind} {name!r} is not known, expected auto or one of {', '.join(choices)}")
    return choices[name]
