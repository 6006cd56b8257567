"""Call a kernel of the built library with tensors, on the current stream."""

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.build import library

Argument = Tensor | int | ctypes.c_int64 | ctypes.c_float | Sequence[Tensor] | Sequence[int] | None


@functools.cache
def kernel(name: str) -> Callable[..., None]:
    """The entry point `name` as a function of tensors (their addresses), ints, and lists of either.

    It raises RuntimeError when the launch is refused. The stream is added as the last argument.
    """
    function = getattr(library(), name)
    function.restype = ctypes.c_int

    def call(*arguments: Argument) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = function(*map(_c_argument, arguments), stream)
        if status:
            raise RuntimeError(f"{name} could not be launched: CUDA error {status}")

    return call


def _c_argument(value: Argument) -> object:
    if isinstance(value, int):
        return ctypes.c_int(value)
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, ctypes.c_int64 | ctypes.c_float):
        return value
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value[0], Tensor):
        return (ctypes.c_void_p * len(value))(*(one.data_ptr() for one in value))  # type: ignore[union-attr]
    return (ctypes.c_int * len(value))(*value)  # type: ignore[arg-type]
