"""One layer's weights, arranged for the CUDA kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.time_mix import VECTORS

RANK_MULTIPLE = 32  # ranks are padded with zeros to what the kernels' fragments want
PROJECTIONS = ("value", "receptance", "key")
# Order of the mixed inputs: what w, a and v make of theirs is one batched product, and so is what v, r and k make.
MIX_ORDER = "wavrkg"
SMALL, PROJECTED = slice(0, 3), slice(2, 5)
LORA_ORDER = "wavg"
LORA_ACTIVATION = {"w": "tanh", "a": "none", "v": "none", "g": "sigmoid"}


class Block:
    """One layer's weights, arranged for the kernels."""

    def __init__(self, weights: dict[str, Tensor], *, sparse: bool) -> None:
        self.ln1 = weights["ln1.weight"], weights["ln1.bias"]
        self.ln2 = weights["ln2.weight"], weights["ln2.bias"]
        self.mixes = torch.stack([weights[f"att.x_{name}"] for name in MIX_ORDER])
        self.channel_mix = weights["ffn.x_k"].unsqueeze(0)
        self.projections = torch.stack([weights[f"att.{name}.weight"] for name in PROJECTIONS])  # [3, C, C]
        self.output = weights["att.output.weight"]
        self.up = weights["ffn.key.weight"]
        self.down = weights["ffn.value.weight"]
        self.down_by_neuron = self.down.T.contiguous() if sparse else self.down[:0]  # [4C, C]
        width = len(self.output)
        for name in LORA_ORDER:  # layer 0 has no v
            weights.setdefault(f"att.{name}1", self.output.new_zeros(width, 0))
            weights.setdefault(f"att.{name}2", self.output.new_zeros(0, width))
        # w, a and v get one rank, the largest of theirs, so that one batched product can serve all three.
        small = max(len(weights[f"att.{name}2"]) for name in LORA_ORDER[:3])
        ranks = dict(zip(LORA_ORDER, (small, small, small, len(weights["att.g2"])), strict=True))
        inner = [_padded(weights[f"att.{name}1"].T, rank) for name, rank in ranks.items()]
        self.lora_in_small = torch.stack(inner[:3])  # [3, rank, C]
        self.lora_in = dict(zip(LORA_ORDER, [*self.lora_in_small, inner[3]], strict=True))  # four [rank, C]
        outer = [_padded(weights[f"att.{name}2"], rank).T.contiguous() for name, rank in ranks.items()]
        self.lora_out_small = torch.stack(outer[:3])  # [3, C, rank]
        self.lora_out = [*self.lora_out_small, outer[3]]  # four [C, rank]
        self.ranks = [len(weight) for weight in self.lora_in.values()]
        zero = self.output.new_zeros(width)
        self.vectors = [weights.get(f"att.{name}", zero).reshape(-1) for name in VECTORS]


def _padded(weight: Tensor, rank: int) -> Tensor:
    """Rows [rank, ...] extended with zeros to `rank`, and that to a whole number of the kernels' fragments."""
    wanted = rank + -rank % RANK_MULTIPLE
    return F.pad(weight, (0, 0, 0, wanted - len(weight))).contiguous()
