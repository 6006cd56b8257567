"""Make random RWKV-7 checkpoints: official names and shapes, no knowledge.

For tests and speed measurements where no trained weights are at hand. The vectors follow the official initialisation,
with some noise so that no channel is like its neighbour; what starts at zero in training is random here, so that the
logits depend on everything. Three properties are those of trained models because speed or behaviour depends on them:

* Activations stay of order one over long runs and many layers, so that nothing overflows in half precision.
* The channel mix's relu(x)^2 is zero for a chosen share of its neurons (0.86 to 0.90 in trained models; plain random
  weights give 0.5), and some neurons fire far more often than others.
* The next token's distribution is peaked (2 to 5 nats). The end of text and the ids that have no text have logits near
  -40: a run does not end early, and all that it draws can be decoded.
"""

import math
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from inference.bus.messages import END_OF_TEXT
from inference.engine.weights import RANDOM_MARKER, Progress
from kernels.wkv7 import HEAD_SIZE

VOCAB = 65536
WORLD_TOKENS = 65530  # ids from here on stand for no text
LN2_BIAS = 0.5
FIRING_SPREAD = 0.6  # of the neurons' thresholds, in standard deviations of their input
LN_OUT_BIAS = 0.5
NEVER_LOGIT = -40.0


class Size(NamedTuple):
    layers: int
    width: int
    decay_rank: int
    a_rank: int
    value_rank: int
    gate_rank: int


SIZES = {
    "tiny": Size(2, 128, 32, 32, 32, 32),
    "0.1b": Size(12, 768, 64, 64, 32, 128),
    "0.4b": Size(24, 1024, 64, 64, 32, 128),
    "1.5b": Size(24, 2048, 96, 96, 64, 256),
    "2.9b": Size(32, 2560, 96, 96, 64, 320),
    "7.2b": Size(32, 4096, 128, 128, 96, 480),
    "13.3b": Size(61, 4096, 192, 192, 128, 384),
}


def make_checkpoint(
    path: str | Path,
    size: str,
    *,
    seed: int = 0,
    sparsity: float = 0.9,
    dtype: torch.dtype = torch.bfloat16,
    vocab: int = VOCAB,
    device: str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Write a random checkpoint of a size in SIZES; a `.safetensors` path gives that format, any other a torch zip.

    `sparsity` (0 to 1, both excluded) is the share of relu(x)^2 that is zero. The same seed gives the same file on the
    same kind of device. The file appears under its name when it is complete.
    """
    path = Path(path)
    recipe = _Recipe(SIZES[size], seed=seed, sparsity=sparsity, dtype=dtype, vocab=vocab, device=device)
    tensors: dict[str, Tensor] = {}
    for done, part in enumerate(recipe.parts(), start=1):
        tensors |= part
        if progress is not None:
            progress(done / (recipe.layers + 2))  # the last step is writing
    unfinished = path.with_name(path.name + ".partial")
    if path.suffix == ".safetensors":
        save_file(tensors, unfinished)
    else:
        torch.save(tensors, unfinished)
    os.replace(unfinished, path)
    if progress is not None:
        progress(1.0)


class _Recipe:
    def __init__(self, size: Size, *, seed: int, sparsity: float, dtype: torch.dtype, vocab: int, device: str) -> None:
        self.size, self.dtype, self.vocab, self.device = size, dtype, vocab, device
        self.layers, self.width = size.layers, size.width
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.zero_quantile = NormalDist().inv_cdf(sparsity)
        channel = torch.arange(self.width, device=device)
        self.ramp = channel / (self.width - 1)
        zigzag = (channel % HEAD_SIZE - (HEAD_SIZE - 1) / 2) / ((HEAD_SIZE - 1) / 2)
        self.zigzag = zigzag * zigzag.abs()

    def normal(self, *shape: int, std: float) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device) * std

    def uniform(self, *shape: int, limit: float) -> Tensor:
        return (torch.rand(shape, generator=self.generator, device=self.device) * 2 - 1) * limit

    def near(self, value: Tensor | float, std: float) -> Tensor:
        return value + self.normal(self.width, std=std)

    def parts(self) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors outside the blocks, then those of each block; in the file's dtype and on the host."""
        yield {name: tensor.to(self.dtype).cpu() for name, tensor in self.outer()}
        for layer in range(self.layers):
            block = chain(self.norms(), self.time_mix(layer), self.channel_mix(layer))
            yield {f"blocks.{layer}.{name}": self.stored(name, tensor) for name, tensor in block}

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """As official files have it: the mixes' own vectors are [1, 1, C], those of norms [C]."""
        own_vector = tensor.dim() == 1 and name.startswith(("att.", "ffn.")) and ".ln_x." not in name
        return (tensor.view(1, 1, -1) if own_vector else tensor).to(self.dtype).cpu()

    def outer(self) -> Iterator[tuple[str, Tensor]]:
        yield RANDOM_MARKER, torch.ones(1)
        yield "emb.weight", self.normal(self.vocab, self.width, std=0.5)
        yield "blocks.0.ln0.weight", self.near(1.0, 0.1)
        yield "blocks.0.ln0.bias", self.near(0.0, 0.02)
        yield "ln_out.weight", self.near(1.0, 0.1)
        # The bias has a pattern of signs that the rows of the ids never to be drawn answer with the opposite.
        signs = torch.randint(0, 2, (self.width,), generator=self.generator, device=self.device) * 2.0 - 1.0
        yield "ln_out.bias", signs * LN_OUT_BIAS
        head = self.normal(self.vocab, self.width, std=4 / math.sqrt(self.width))
        never = [END_OF_TEXT, *range(WORLD_TOKENS, self.vocab)]
        head[never] = signs * (NEVER_LOGIT / (LN_OUT_BIAS * self.width))
        yield "head.weight", head

    def norms(self) -> Iterator[tuple[str, Tensor]]:
        yield "ln1.weight", self.near(1.0, 0.1)
        yield "ln1.bias", self.near(0.0, 0.02)
        yield "ln2.weight", torch.ones(self.width)
        yield "ln2.bias", torch.full((self.width,), LN2_BIAS)

    def time_mix(self, layer: int) -> Iterator[tuple[str, Tensor]]:
        depth = layer / (self.layers - 1)  # 0 in the first layer, 1 in the last
        remaining = 1 - layer / self.layers
        centred = self.ramp - 0.5
        for name, power in (("r", 0.2), ("w", 0.9), ("k", 0.7), ("v", 0.7), ("a", 0.9), ("g", 0.2)):
            yield f"att.x_{name}", self.near(1 - self.ramp ** (power * remaining), 0.02)
        yield "att.w0", self.near(-5.5 + 6 * self.ramp ** (1 + depth**0.3) + 2.5 * self.zigzag, 0.1)
        yield "att.a0", self.near(-0.19 + 0.3 * self.zigzag + 0.4 * centred, 0.1)
        yield "att.v0", self.near(0.73 - 0.4 * centred, 0.1)
        yield "att.k_k", self.near(0.71 - 0.1 * centred, 0.05)
        yield "att.k_a", self.near(1.02, 0.05)
        yield "att.r_k", self.near(-0.04, 0.05).view(-1, HEAD_SIZE)
        scale = 0.5 / math.sqrt(self.width)
        ranks = {"w": self.size.decay_rank, "a": self.size.a_rank, "v": self.size.value_rank, "g": self.size.gate_rank}
        for name, rank in ranks.items():
            yield f"att.{name}1", self.normal(self.width, rank, std=scale)
            yield f"att.{name}2", self.normal(rank, self.width, std=(2.0 if name == "g" else 0.5) / math.sqrt(rank))
        for name in ("receptance", "key", "value", "output"):
            yield f"att.{name}.weight", self.uniform(self.width, self.width, limit=scale)
        yield "att.ln_x.weight", self.near(((1 + layer) / self.layers) ** 0.7, 0.05)
        yield "att.ln_x.bias", self.near(0.0, 0.02)

    def channel_mix(self, layer: int) -> Iterator[tuple[str, Tensor]]:
        """Every channel of ln2's bias is the same, and token shift leaves it so: adding a constant to a row of
        `ffn.key` moves its neuron's mean and not its spread. The mean is what makes it zero most of the time.
        """
        neurons, limit = 4 * self.width, 0.5 / math.sqrt(self.width)
        mix = self.near(1 - self.ramp ** ((1 - layer / self.layers) ** 4), 0.02)
        yield "ffn.x_k", mix
        key = self.uniform(neurons, self.width, limit=limit)
        key -= key.mean(dim=1, keepdim=True)
        input_rms = (mix**2 + (1 - mix) ** 2).mean().sqrt().item()
        spread = input_rms * 0.5 / math.sqrt(3)  # a neuron's standard deviation over tokens
        lean = self.normal(neurons, 1, std=FIRING_SPREAD)
        mean = -spread * (self.zero_quantile * math.sqrt(1 + FIRING_SPREAD**2) + lean)
        yield "ffn.key.weight", key + mean / (self.width * LN2_BIAS)
        yield "ffn.value.weight", self.uniform(self.width, neurons, limit=3 / math.sqrt(self.width))
