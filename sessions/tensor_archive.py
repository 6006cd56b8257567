"""PyTorch's zip format for a dict of tensors and texts, without PyTorch."""

import io
import math
import pickle
import struct
import sys
import zipfile
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8}
MOST_PICKLE_BYTES = 2**20
ROOT = "state"  # the folder inside the archives that we write

if sys.byteorder != "little":
    raise ImportError("tensor archives are little-endian, and so must the machine be")


class BadArchive(Exception):
    """Not a dict of tensors, or a damaged one."""


@dataclass(slots=True)
class StoredTensor:
    dtype: str
    shape: list[int]
    data: bytes  # little-endian, in C order

    @classmethod
    def of_bytes(cls, dtype: str, shape: list[int], data: bytes) -> "StoredTensor":
        """The tensor at the beginning of `data`."""
        return cls(dtype, shape, data[: ITEM_BYTES[dtype] * math.prod(shape)])

    def as_float32(self) -> array:
        """Raises BadArchive for integers."""
        match self.dtype:
            case "float32":
                return array("f", self.data)
            case "float64":
                return array("f", array("d", self.data))
            case "float16":
                return array("f", struct.unpack(f"<{len(self.data) // 2}e", self.data))
            case "bfloat16":  # the upper half of a float32
                wide = bytearray(2 * len(self.data))
                wide[2::4], wide[3::4] = self.data[0::2], self.data[1::2]
                return array("f", bytes(wide))
        raise BadArchive(f"expected floating-point tensors, found {self.dtype}")


# -- reading ------------------------------------------------------------------------------------


def read_archive(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The dict in the archive; its tensors are StoredTensor. Raises BadArchive and zipfile.BadZipFile."""
    pickles = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise BadArchive("expected a .pth as torch.save writes it, with one data.pkl")
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED:
            raise BadArchive(f"{info.filename:.100}: expected an archive without compression")
    if pickles[0].file_size > MOST_PICKLE_BYTES:
        raise BadArchive("data.pkl: too large for a dict of some tensors")
    reader = _Reader(archive, pickles[0].filename.removesuffix("data.pkl"))
    try:
        content = reader.load()
    except (BadArchive, zipfile.BadZipFile):
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise BadArchive(f"data.pkl: cannot be read: {type(error).__name__}") from error
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise BadArchive("expected a dict of tensors by name")
    return dict(content)


class _Reader(pickle.Unpickler):
    """Knows what a dict of tensors is made of, and refuses everything else."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive = archive
        self._root = root

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) not in known:
            raise BadArchive(f"data.pkl: {module}.{name} has no place in a dict of tensors")
        return known[module, name]

    def persistent_load(self, pid: Any) -> tuple[str, bytes]:
        _, dtype, key, _location, _count = pid
        entry = f"{self._root}data/{key}"
        try:
            return dtype, self._archive.read(entry)
        except KeyError as error:
            raise BadArchive(f"data/{key:.20}: missing") from error


def _rebuild_tensor(storage: tuple[str, bytes], offset: int, size: Any, stride: Any, *_: Any) -> StoredTensor:
    dtype, data = storage
    shape = [int(length) for length in size]
    steps = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    if list(stride) != steps:
        raise BadArchive("expected contiguous tensors: call .contiguous() before saving")
    begin, length = offset * ITEM_BYTES[dtype], math.prod(shape) * ITEM_BYTES[dtype]
    part = data[begin : begin + length]
    if offset < 0 or any(length < 0 for length in shape) or len(part) != length:
        raise BadArchive("a tensor is larger than its data")
    return StoredTensor(dtype, shape, part)


# -- writing ------------------------------------------------------------------------------------


def write_archive(file: IO[bytes], content: Mapping[str, StoredTensor | str]) -> None:
    """Write what `torch.load(file, weights_only=True)` reads as a dict of tensors and texts."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{ROOT}/data.pkl", _pickled(content))
        archive.writestr(f"{ROOT}/byteorder", "little")
        tensors = [value for value in content.values() if isinstance(value, StoredTensor)]
        for key, tensor in enumerate(tensors):
            archive.writestr(f"{ROOT}/data/{key}", tensor.data)
        archive.writestr(f"{ROOT}/version", "3\n")


def _pickled(content: Mapping[str, StoredTensor | str]) -> bytes:
    """The pickle, written by hand: the names in it are those of a package that is not imported here."""
    out = pickle.PROTO + b"\2" + pickle.EMPTY_DICT + pickle.MARK
    key = 0
    for name, value in content.items():
        out += _text(name)
        if isinstance(value, str):
            out += _text(value)
        else:
            out += _tensor(value, str(key))
            key += 1
    return out + pickle.SETITEMS + pickle.STOP


def _tensor(tensor: StoredTensor, key: str) -> bytes:
    """A call of `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`."""
    storage = {dtype: name for name, dtype in STORAGES.items()}[tensor.dtype]
    strides = [math.prod(tensor.shape[place + 1 :]) for place in range(len(tensor.shape))]
    pid = _text("storage") + _name("torch", storage) + _text(key) + _text("cpu") + _int(math.prod(tensor.shape))
    hooks = _name("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = _tuple(pid) + pickle.BINPERSID + _int(0) + _ints(tensor.shape) + _ints(strides)
    arguments += pickle.NEWFALSE + hooks
    return _name("torch._utils", "_rebuild_tensor_v2") + _tuple(arguments) + pickle.REDUCE


def _tuple(items: bytes) -> bytes:
    return pickle.MARK + items + pickle.TUPLE


def _ints(values: list[int]) -> bytes:
    return _tuple(b"".join(_int(value) for value in values))


def _int(value: int) -> bytes:
    return pickle.BININT + struct.pack("<i", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _name(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()
