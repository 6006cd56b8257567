"""Products of fp16 matrices by cuBLASLt, with an algorithm of the caller's choice.

PyTorch leaves the choice to cuBLAS, whose guess can be several percent slower than the best that it has.

Calls and constants are those of cublasLt.h (NVIDIA, "Using the cuBLASLt API"), the same in CUDA 12 and 13. The library
is the one that PyTorch has loaded; no header of it is needed.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_SUCCESS = 0
_COMPUTE_32F, _TRANSPOSED = 68, 1
_DATA_TYPES = {torch.float32: 0, torch.float16: 2}
_TRANSPOSE_A = 3  # attribute of an operation
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # attributes of a layout
_MOST_WORKSPACE, _LEAST_ALIGNMENTS = 1, (5, 6, 7, 8)  # attributes of a preference
_ALIGNMENT = 16  # bytes, of every matrix; the copy engine wants no more
_MOST_OFFERED = 32


class Problem(NamedTuple):
    """y [batch, m, n] = x [batch, m, k] w [batch, n, k]^T, and how many elements rows and batches lie apart."""

    batch: int
    m: int
    n: int
    k: int
    x_row: int
    x_batch: int
    w_row: int
    w_batch: int
    y_row: int
    y_batch: int
    y_type: torch.dtype

    @classmethod
    def plain(cls, m: int, n: int, k: int) -> "Problem":
        """One product of contiguous matrices."""
        return cls(1, m, n, k, k, m * k, k, n * k, n, m * n, torch.float16)

    @classmethod
    def of(cls, x: Tensor, w: Tensor, y: Tensor) -> "Problem":
        """x [B, M, K], w [B, N, K], y [B, M, N], each with its rows contiguous."""
        (batch, m, k), n = x.shape, w.shape[1]
        (x_batch, x_row, _), (w_batch, w_row, _), (y_batch, y_row, _) = x.stride(), w.stride(), y.stride()
        return cls(batch, m, n, k, x_row, x_batch, w_row, w_batch, y_row, y_batch, y.dtype)


class _Offer(ctypes.Structure):  # cublasLtMatmulHeuristicResult_t
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def version() -> int:
    """Of cuBLASLt, to which names of algorithms belong; 0 where PyTorch has none."""
    return 0 if _library() is None else _call("cublasLtGetVersion")


def offered(problem: Problem) -> list[str]:
    """The algorithms that cuBLASLt would try for `problem`, its best guess first; their names are good for this build
    of it. None of them needs a workspace. Empty where PyTorch has no cuBLASLt.
    """
    if _library() is None:
        return []
    preference = _created("cublasLtMatmulPreferenceCreate")
    _set("cublasLtMatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, ctypes.c_uint64(0))
    for matrix in _LEAST_ALIGNMENTS:
        _set("cublasLtMatmulPreferenceSetAttribute", preference, matrix, ctypes.c_uint32(_ALIGNMENT))
    offers, count = (_Offer * _MOST_OFFERED)(), ctypes.c_int(0)
    status = _call(
        "cublasLtMatmulAlgoGetHeuristic",
        _handle(),
        *_described(problem),
        preference,
        ctypes.c_int(_MOST_OFFERED),
        offers,
        ctypes.byref(count),
    )
    _call("cublasLtMatmulPreferenceDestroy", preference)
    found = offers[: count.value] if status == _SUCCESS else []
    return [bytes(offer.algorithm).hex() for offer in found if offer.status == _SUCCESS]


def suits(problem: Problem, algorithm: str) -> bool:
    """Whether `algorithm`, offered for any problem, can compute this one without a workspace."""
    result = _Offer()
    status = _call(
        "cublasLtMatmulAlgoCheck", _handle(), *_described(problem), _as_struct(algorithm), ctypes.byref(result)
    )
    return bool(status == result.status == _SUCCESS and result.workspace == 0)


class PreparedProduct:
    """`problem` by `algorithm`, with everything at hand that a call needs: the host has little time for each."""

    def __init__(self, problem: Problem, algorithm: str) -> None:
        operation, of_w, of_x, of_y, _ = (pointer.value for pointer in _described(problem))
        self._operands = problem, algorithm
        self._head = _handle().value, operation, ctypes.addressof(_ONE)
        self._layouts = of_w, of_x, of_y
        self._algorithm = _as_struct(algorithm)
        self._tail = ctypes.addressof(_ZERO), ctypes.addressof(self._algorithm)
        self._multiply = _multiply()

    def __call__(self, x: Tensor, w: Tensor, y: Tensor) -> None:
        """y = x w^T on the current stream. Raises RuntimeError if `algorithm` does not suit."""
        of_w, of_x, of_y = self._layouts
        zero, algorithm = self._tail
        to_y, stream = y.data_ptr(), torch.cuda.current_stream().cuda_stream
        status = self._multiply(
            *self._head,
            w.data_ptr(),
            of_w,
            x.data_ptr(),
            of_x,
            zero,
            to_y,
            of_y,
            to_y,
            of_y,
            algorithm,
            None,
            0,
            stream,
        )
        if status != _SUCCESS:
            raise RuntimeError(f"cuBLASLt refuses {self._operands}: status {status}")


@functools.cache
def _multiply() -> Callable[..., int]:
    """The call with its types declared, so that addresses pass as they are."""
    library = _library()
    assert library is not None, "nothing was offered without it"
    function = library.cublasLtMatmul
    pointer = ctypes.c_void_p
    function.argtypes = [*[pointer] * 14, ctypes.c_size_t, pointer]
    return function  # type: ignore[no-any-return]


_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


@functools.cache  # there are as many as a step may have numbers of rows
def _described(problem: Problem) -> tuple[ctypes.c_void_p, ...]:
    """The operation, and the layouts of w, x, y and, again, y.

    To cuBLAS matrices lie by column: rows of ours are its columns, and w comes first, transposed.
    """
    p = problem
    operation = _created(
        "cublasLtMatmulDescCreate", ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_DATA_TYPES[torch.float32])
    )
    _set("cublasLtMatmulDescSetAttribute", operation, _TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
    w = _layout(torch.float16, p.k, p.n, p.w_row, p.batch, p.w_batch)
    x = _layout(torch.float16, p.k, p.m, p.x_row, p.batch, p.x_batch)
    y = _layout(p.y_type, p.n, p.m, p.y_row, p.batch, p.y_batch)
    return operation, w, x, y, y


def _layout(dtype: torch.dtype, rows: int, columns: int, stride: int, batch: int, batch_stride: int) -> ctypes.c_void_p:
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(stride)
    layout = _created("cublasLtMatrixLayoutCreate", ctypes.c_int(_DATA_TYPES[dtype]), *sizes)
    _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_COUNT, ctypes.c_int32(batch))
    _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_STRIDE, ctypes.c_int64(batch_stride))
    return layout


@functools.lru_cache(maxsize=1024)
def _as_struct(algorithm: str) -> "ctypes.Array[ctypes.c_uint64]":
    return (ctypes.c_uint64 * 8).from_buffer_copy(bytes.fromhex(algorithm))


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}")
    except OSError:
        return None  # PyTorch for another kind of device, or linked against its libraries in another way


@functools.cache
def _handle() -> ctypes.c_void_p:
    return _created("cublasLtCreate")


def _created(function: str, *arguments: object) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _checked(function, ctypes.byref(made), *arguments)
    return made


def _set(function: str, of: ctypes.c_void_p, attribute: int, value: "ctypes._SimpleCData[int]") -> None:
    _checked(function, of, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


def _checked(function: str, *arguments: object) -> None:
    if status := _call(function, *arguments):
        raise RuntimeError(f"{function}: status {status}")


def _call(function: str, *arguments: object) -> int:
    return int(getattr(_library(), function)(*arguments))
