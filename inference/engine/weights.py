"""Open RWKV-7 ("x070") checkpoints, and check everything in them before anything is loaded.

The file may be an official `.pth` (a torch zip archive) or a `.safetensors` with the same names. Both are mapped,
not read: a tensor's bytes come from the disk when a back end copies them to its device.
"""

import hashlib
import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from inference.bus.messages import ModelInfo
from kernels.wkv7 import HEAD_SIZE

log = logging.getLogger(__name__)

Progress = Callable[[float], None]  # called with the share of the work that is done, 0 to 1

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
RANDOM_MARKER = "random_weights"  # a tensor of this name says that `make_checkpoint` made the file

# Shapes by size: V vocabulary, C width, H heads, F channel-mix width, w a v g the low ranks. Vectors are
# stored as [C] or [1, 1, C]. "?" marks a size that the tensor itself defines.
OUTER_SHAPES = {
    "emb.weight": "V C",
    "blocks.0.ln0.weight": "C",
    "blocks.0.ln0.bias": "C",
    "ln_out.weight": "C",
    "ln_out.bias": "C",
    "head.weight": "V C",
}
BLOCK_SHAPES = {
    **{f"{norm}.{part}": "C" for norm in ("ln1", "ln2", "att.ln_x") for part in ("weight", "bias")},
    **{f"att.{name}": "C" for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a")},
    **{f"att.{name}1": f"C {name}?" for name in "wavg"},
    **{f"att.{name}2": f"{name} C" for name in "wavg"},
    "att.r_k": "H 64",
    **{f"att.{name}.weight": "C C" for name in ("receptance", "key", "value", "output")},
    "ffn.x_k": "C",
    "ffn.key.weight": "F? C",
    "ffn.value.weight": "C F",
}
# Layer 0 has no earlier value to mix in, so these do nothing there; official files carry them, others may not.
UNUSED = frozenset(f"blocks.0.att.{name}" for name in ("v0", "v1", "v2"))


class CheckpointError(Exception):
    """The file cannot be served. The message is one line that names the file, and the tensor if there is one."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    layers: int
    width: int
    heads: int
    vocab: int


class Checkpoint:
    """A checked checkpoint file. Raises CheckpointError if it is not one, or not of this architecture."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        tensors = _open(self.path)
        random = RANDOM_MARKER in tensors
        self.dimensions = _read_dimensions(self.path, tensors)
        expected = _expected_shapes(self.dimensions.layers)
        _refuse_other_architectures(self.path, tensors, expected)
        stored = sum(tensors[name].numel() for name in expected.keys() & tensors.keys())
        self._tensors = _check_tensors(self.path, tensors, expected, self.dimensions)
        self.info = ModelInfo(
            id=self.path.stem,
            layers=self.dimensions.layers,
            width=self.dimensions.width,
            vocab=self.dimensions.vocab,
            parameters=stored,
            fingerprint=fingerprint(self._tensors),
            random=random,
            created=int(self.path.stat().st_mtime),
        )

    def groups(self, progress: Progress | None = None) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield ("emb", tensors), ("blocks.0", tensors), ... ("head", tensors), in the order of the forward pass.

        Names lose the prefix of their block; vectors are [C]. Layer 0 never has `att.v0`, `att.v1` and `att.v2`.
        `blocks.0.ln0` belongs to "emb", and `ln_out` to "head". The tensors are views of the mapped file, in its dtype:
        copy what is to stay. `progress` is called when the consumer comes back for the next group.
        """
        outer = {name.removeprefix("blocks.0."): self._tensors[name] for name in OUTER_SHAPES}
        head = {name: outer.pop(name) for name in ("ln_out.weight", "ln_out.bias", "head.weight")}
        groups = [("emb", outer)]
        for layer in range(self.dimensions.layers):
            prefix = f"blocks.{layer}."
            names = [name for name in BLOCK_SHAPES if prefix + name not in UNUSED]
            groups.append((f"blocks.{layer}", {name: self._tensors[prefix + name] for name in names}))
        groups.append(("head", head))
        for done, group in enumerate(groups, start=1):
            yield group
            if progress is not None:
                progress(done / len(groups))


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 that tells models apart without reading them whole.

    It covers each used tensor's name, shape and dtype, and of its bytes all when there are at most 4096, else eight
    pieces of 512 spread evenly from the first to the last. It is the same for a .pth and its .safetensors twin.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}\n".encode())
        data = tensor.contiguous().view(-1).view(torch.uint8)
        size = data.numel()
        pieces = [data]
        if size > 4096:
            pieces = [data[start : start + 512] for start in ((size - 512) * piece // 7 for piece in range(8))]
        for piece in pieces:
            digest.update(piece.numpy().data)
    return digest.hexdigest()


def _open(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        with path.open("rb") as file:
            is_torch_zip = file.read(4) == b"PK\x03\x04"
        what = "is truncated or damaged" if is_torch_zip or path.suffix == ".safetensors" else "is not a checkpoint"
        raise CheckpointError(f"{path}: {what} ({str(error).splitlines()[0][:200] or 'unexpected end'})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, expected a mapping of names to tensors")
    for name in [name for name, value in content.items() if not isinstance(value, Tensor)]:
        log.debug("%s: ignored %s, which is not a tensor", path, name)
        del content[name]
    return content


def _read_dimensions(path: Path, tensors: Mapping[str, Tensor]) -> Dimensions:
    """Sizes come from the tensors alone: they name the model, not the file's name or a table of known models."""
    numbers = {int(match[1]) for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))}
    if not numbers:
        raise CheckpointError(f"{path}: is not an RWKV checkpoint: it has no tensors named blocks.0.*")
    if "emb.weight" not in tensors or tensors["emb.weight"].dim() != 2:
        found = list(tensors["emb.weight"].shape) if "emb.weight" in tensors else "missing"
        raise CheckpointError(f"{path}: emb.weight is {found}, expected the shape [vocabulary, width]")
    vocab, width = tensors["emb.weight"].shape
    if width % HEAD_SIZE:
        raise CheckpointError(f"{path}: emb.weight has width {width}, expected a multiple of the head size {HEAD_SIZE}")
    return Dimensions(layers=max(numbers) + 1, width=width, heads=width // HEAD_SIZE, vocab=vocab)


def _expected_shapes(layers: int) -> dict[str, str]:
    blocks = {f"blocks.{layer}.{name}": shape for layer in range(layers) for name, shape in BLOCK_SHAPES.items()}
    return OUTER_SHAPES | blocks


def _refuse_other_architectures(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, str]) -> None:
    """Every tensor of a block takes part in the forward pass, so one that RWKV-7 lacks means another model."""
    for name in tensors.keys() - expected.keys() - {RANDOM_MARKER}:
        if not name.startswith("blocks."):
            log.debug("%s: ignored tensor %s, which RWKV-7 does not have", path, name)
            continue
        guess = "another architecture"
        if ".time_" in name:
            guess = "RWKV-4, 5 or 6"
        elif ".ffn.s_" in name:
            guess = "RWKV-7a (DeepEmbed)"
        raise CheckpointError(f"{path}: tensor {name} is not part of RWKV-7 (x070): this looks like {guess}")


def _check_tensors(
    path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, str], dimensions: Dimensions
) -> dict[str, Tensor]:
    """Return the tensors the forward pass uses, vectors squeezed to [C]; refuse the first that does not fit."""
    known = {"V": dimensions.vocab, "C": dimensions.width, "H": dimensions.heads, "64": HEAD_SIZE}
    checked = {}
    for name, shape in expected.items():
        if name in UNUSED:
            continue
        symbols = [symbol.rstrip("?") for symbol in shape.split()]
        for symbol in symbols:
            if symbol + "?" in shape.split():
                known.pop(symbol, None)  # this tensor defines it anew: ranks may differ from layer to layer
        wanted = [known.get(symbol) for symbol in symbols]
        try:
            checked[name] = _check_tensor(tensors.get(name), wanted)
        except ValueError as error:
            raise CheckpointError(f"{path}: tensor {name} {error}") from None
        known.update(zip(symbols, checked[name].shape, strict=True))
    return checked


def _check_tensor(tensor: Tensor | None, wanted: list[int | None]) -> Tensor:
    """Return it in the wanted shape, where None stands for any size. Raises ValueError that says what is wrong."""
    text = "[" + ", ".join("any" if size is None else str(size) for size in wanted) + "]"
    if tensor is None:
        raise ValueError(f"is missing, expected shape {text}")
    if tensor.dtype not in DTYPES:
        dtype, *dtypes = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *DTYPES))
        raise ValueError(f"is {dtype}, expected one of {', '.join(dtypes)}")
    sizes = list(tensor.shape)
    if len(wanted) == 1 and sizes[:-1] == [1, 1]:
        sizes = sizes[-1:]
    if len(sizes) != len(wanted) or any(want not in (None, size) for want, size in zip(wanted, sizes, strict=True)):
        raise ValueError(f"has shape {list(tensor.shape)}, expected {text}")
    return tensor.view(sizes)
