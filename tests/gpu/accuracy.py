"""What the kernel tests share: random inputs, poisoned outputs, errors against float64."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

DEVICE = torch.device("cuda")


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float16) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def random_slots(rows: int, spare: int = 3) -> Tensor:
    """Distinct slots out of `rows + spare`, in no order."""
    return torch.randperm(rows + spare, device=DEVICE)[:rows].int()


def relative_error(result: Tensor, exact: Tensor) -> float:
    """|result - exact| / |exact|; NaN, which fails every comparison, if the result has one."""
    return ((result.double() - exact).norm() / exact.norm()).item()


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, new tensors hold NaN, so that an element which a kernel does not write is seen."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
