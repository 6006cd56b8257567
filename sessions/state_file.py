"""States as `.pth` files, read and written without PyTorch: the web processes never load it.

A `.pth` is a zip archive of one pickle and one entry for each tensor's bytes. The pickle is read with a
reader that knows the few names a dict of tensors needs and refuses every other, so nothing in a file is run.

Two forms are read:

* What state tuning writes (RWKV-LM, RWKV-PEFT): `blocks.{i}.att.time_state` [H, 64, 64] for each layer i.
  Rows are values and columns are keys, as in the kernels that train it, for RWKV-7 as for RWKV-6. RWKV-7
  keeps its running state in the same orientation (the `rwkv` package adds `v [64, 1] @ k [1, 64]` to it),
  and so does this project, so the tensors are taken as they are. The transposition that the `rwkv` package
  does with `time_state` is in its RWKV-5/6 class alone, whose running state is (key, value). The token
  shifts begin at zero.
* What `write_state` writes: `shift` [L, 2, C] (time mix, channel mix) and `wkv` [L, H, 64, 64] (value, key),
  and with them `pending_ids`, the last tokens of the history, which the state has not been fed yet, and
  `model_fingerprint`, so that another model refuses it.
"""

import math
import re
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from sessions.tensor_archive import BadArchive, StoredTensor, read_archive, write_archive

HEAD_SIZE = 64
MOST_PENDING = 1024
TIME_STATE = re.compile(r"blocks\.(\d+)\.att\.time_state")


class BadStateFile(Exception):
    """The file is no state of this model. The message is one line that names the tensor."""


@dataclass(frozen=True, slots=True)
class StateShape:
    layers: int
    width: int

    @property
    def shift(self) -> list[int]:
        return [self.layers, 2, self.width]

    @property
    def wkv(self) -> list[int]:
        return [self.layers, *self.layer]

    @property
    def layer(self) -> list[int]:
        return [self.width // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE]

    @property
    def most_bytes(self) -> int:
        """Of a file with float64 tensors, and room for what is around them."""
        return 8 * (math.prod(self.shift) + math.prod(self.wkv)) + 2**20


@dataclass(slots=True, kw_only=True)
class StateFile:
    """`shift` and `wkv` in float32, in C order."""

    shift: array
    wkv: array
    pending: list[int] = field(default_factory=list)
    model_fingerprint: str = ""  # "" where the file does not say it
    tensors: int = 0

    @property
    def data(self) -> bytes:
        """As the engine reads it: all of `shift`, then all of `wkv`, little-endian."""
        return self.shift.tobytes() + self.wkv.tobytes()


def read_state(file: IO[bytes], shape: StateShape) -> StateFile:
    """Raises BadStateFile."""
    try:
        with zipfile.ZipFile(file) as archive:
            found = read_archive(archive)
            tensors = {name: value for name, value in found.items() if isinstance(value, StoredTensor)}
            read = _read_tuned if any(TIME_STATE.fullmatch(name) for name in tensors) else _read_whole
            state = read(tensors, shape)
    except zipfile.BadZipFile as error:
        raise BadStateFile(f"not a .pth archive, or a truncated one: {error}") from error
    except BadArchive as error:
        raise BadStateFile(str(error)) from error
    state.tensors = len(tensors)
    fingerprint = found.get("model_fingerprint", "")
    state.model_fingerprint = fingerprint if isinstance(fingerprint, str) else ""
    return state


def write_state(
    file: IO[bytes],
    shape: StateShape,
    *,
    dtypes: Sequence[str],
    data: bytes,
    pending: Sequence[int],
    model_fingerprint: str,
) -> None:
    """Write a state whose `data` is all of `shift`, then all of `wkv`, of these two types."""
    parts: dict[str, StoredTensor | str] = {}
    begin = 0
    for name, dtype, size in zip(("shift", "wkv"), dtypes, (shape.shift, shape.wkv), strict=True):
        tensor = StoredTensor.of_bytes(dtype, size, data[begin:])
        parts[name] = tensor
        begin += len(tensor.data)
    parts["pending_ids"] = StoredTensor("int64", [len(pending)], array("q", pending).tobytes())
    parts["model_fingerprint"] = model_fingerprint
    write_archive(file, parts)


def _read_tuned(tensors: Mapping[str, StoredTensor], shape: StateShape) -> StateFile:
    names = [f"blocks.{layer}.att.time_state" for layer in range(shape.layers)]
    _refuse_others(tensors, names)
    wkv = array("f")
    for name in names:
        wkv.extend(_values(tensors, name, shape.layer))
    return StateFile(shift=array("f", bytes(4 * math.prod(shape.shift))), wkv=wkv)


def _read_whole(tensors: Mapping[str, StoredTensor], shape: StateShape) -> StateFile:
    _refuse_others(tensors, ("shift", "wkv", "pending_ids"))
    state = StateFile(shift=_values(tensors, "shift", shape.shift), wkv=_values(tensors, "wkv", shape.wkv))
    if pending := tensors.get("pending_ids"):
        if pending.dtype != "int64" or len(pending.shape) != 1 or pending.shape[0] > MOST_PENDING:
            raise BadStateFile(f"pending_ids: expected at most {MOST_PENDING} token ids as int64")
        state.pending = array("q", pending.data).tolist()
        if any(not 0 <= token <= 65535 for token in state.pending):
            raise BadStateFile("pending_ids: expected token ids from 0 to 65535")
    return state


def _refuse_others(tensors: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in tensors:
        if name not in known:
            raise BadStateFile(f"{name:.100}: a state of this model has no such tensor")


def _values(tensors: Mapping[str, StoredTensor], name: str, shape: list[int]) -> array:
    """The tensor in float32. Raises BadStateFile."""
    if name not in tensors:
        raise BadStateFile(f"{name}: missing")
    tensor = tensors[name]
    if tensor.shape != shape:
        raise BadStateFile(f"{name}: expected shape {shape}, found {tensor.shape}")
    values = tensor.as_float32()
    if not math.isfinite(sum(values)):  # one infinity or NaN among them makes the sum one too
        raise BadStateFile(f"{name}: a value is not finite")
    return values
