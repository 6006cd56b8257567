"""The ways to compute the products of a layer and of the head, and which is fastest for how many rows.

Our own kernels read weights at the memory's speed, which is what counts for few rows; cuBLAS is the
better one for many. Where the border lies is measured, by `inference.engine.product_choice`.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from inference.engine.cuda_block import LORA_ACTIVATION, LORA_ORDER, MIX_ORDER, PROJECTED, SMALL, Block
from inference.engine.library_choice import Library, Weights
from inference.engine.product_choice import Choices, Way
from kernels.activations import lora_activation, relu_squared
from kernels.build import cache_directory
from kernels.library_products import version as cublas_version
from kernels.lora_up import lora_up
from kernels.skinny_gemm import Product, skinny_products, takes_any_depth
from kernels.sparse_down import MAX_ROWS as SPARSE_ROWS
from kernels.sparse_down import sparse_down

OWN_ROWS = 1024  # our products are not tried for more rows than this
BY_LIBRARY = ("library", "library beside", "halves")
ACTIVE_SHARE = 0.1  # of the neurons of a channel mix, in trained models


LoraUp = Callable[[Block, Tensor], Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]  # x [M, K], w [N, K] -> x w^T, or batches of them, by a library


def _inputs_in_one_launch(block: Block, mixed: Tensor, up: LoraUp, _: Multiply) -> tuple[Tensor, Tensor]:
    """mixed [6, T, C] -> v, r and k [3, T, C]; w, a, v and g before bias and sigmoid [4, T, C]."""
    projected = torch.empty_like(mixed[PROJECTED])
    h, lora = _lora_products(block, mixed)
    skinny_products([*map(Product, mixed[PROJECTED], block.projections, projected), *lora])
    return projected, up(block, h)


def _inputs_lora_apart(block: Block, mixed: Tensor, up: LoraUp, multiply: Multiply) -> tuple[Tensor, Tensor]:
    return _project(block, mixed, multiply), up(block, _lora_in_own(block, mixed))


def _inputs_by_library(block: Block, mixed: Tensor, up: LoraUp, multiply: Multiply) -> tuple[Tensor, Tensor]:
    return _project(block, mixed, multiply), up(block, _lora_in_by_library(block, mixed))


def _inputs_lora_beside(block: Block, mixed: Tensor, up: LoraUp, multiply: Multiply) -> tuple[Tensor, Tensor]:
    return _beside(block, mixed, multiply, lambda: up(block, _lora_in_own(block, mixed)))


def _inputs_by_library_beside(block: Block, mixed: Tensor, up: LoraUp, multiply: Multiply) -> tuple[Tensor, Tensor]:
    return _beside(block, mixed, multiply, lambda: up(block, _lora_in_by_library(block, mixed)))


def _beside(block: Block, mixed: Tensor, multiply: Multiply, low_rank: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The low-rank chain on a stream of its own: it fills the multiprocessors that the projections' last tiles leave.

    Both streams join again, so neither can take the other's memory too early.
    """
    main, side = torch.cuda.current_stream(mixed.device), _side_stream(mixed.device)
    side.wait_stream(main)
    projected = _project(block, mixed, multiply)  # launched first: the chain waits for room, not the projections
    with torch.cuda.stream(side):
        lora = low_rank()
    main.wait_stream(side)
    return projected, lora


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _project(block: Block, mixed: Tensor, multiply: Multiply) -> Tensor:
    return multiply(mixed[PROJECTED], block.projections)


def _lora_in_own(block: Block, mixed: Tensor) -> Tensor:
    h, lora = _lora_products(block, mixed)
    skinny_products(lora)
    return h


def _lora_in_by_library(block: Block, mixed: Tensor) -> Tensor:
    tokens, small = mixed.shape[1], block.ranks[0]
    h = mixed.new_empty((tokens, sum(block.ranks)))
    batch, rest = h[:, : 3 * small].view(tokens, 3, small).transpose(0, 1), h[:, 3 * small :]
    torch.bmm(mixed[SMALL], block.lora_in_small.mT, out=batch)
    torch.mm(mixed[MIX_ORDER.index("g")], block.lora_in["g"].T, out=rest)
    lora_activation(h, small, 3 * small)
    return h


def _lora_products(block: Block, mixed: Tensor) -> tuple[Tensor, list[Product]]:
    """The low-rank activations side by side [T, sum of ranks], and the products that fill them."""
    inputs = dict(zip(MIX_ORDER, mixed, strict=True))
    h = mixed.new_empty((mixed.shape[1], sum(block.ranks)))
    return h, [
        Product(inputs[name], block.lora_in[name], part, LORA_ACTIVATION[name])
        for name, part in zip(LORA_ORDER, h.split(block.ranks, dim=1), strict=True)
    ]


def _lora_up_own(block: Block, h: Tensor) -> Tensor:
    """[T, sum of ranks] -> [4, T, C]"""
    return lora_up(h, block.lora_out)


def _lora_up_as_products(block: Block, h: Tensor) -> Tensor:
    out = h.new_empty((len(LORA_ORDER), len(h), len(block.output)))
    skinny_products([*map(Product, h.split(block.ranks, dim=1), block.lora_out, out)])
    return out


def _lora_up_by_library(block: Block, h: Tensor) -> Tensor:
    tokens, small = len(h), block.ranks[0]
    out = h.new_empty((len(LORA_ORDER), tokens, len(block.output)))
    batch = h[:, : 3 * small].view(tokens, 3, small).transpose(0, 1)
    torch.bmm(batch, block.lora_out_small.mT, out=out[:3])
    torch.mm(h[:, 3 * small :], block.lora_out[3].T, out=out[3])
    return out


def _linear_own(x: Tensor, weight: Tensor, activation: str, _: Multiply) -> Tensor:
    y = x.new_empty((len(x), len(weight)))
    skinny_products([Product(x, weight, y, activation)])
    return y


def _linear_by_library(x: Tensor, weight: Tensor, activation: str, multiply: Multiply) -> Tensor:
    y = multiply(x, weight)
    if activation == "relu_squared":
        relu_squared(y)
    return y


def _down_in_halves(x: Tensor, weight: Tensor, _: str, multiply: Multiply) -> Tensor:
    """-> [2, T, C], to be added up: twice the tiles without the pass that cuBLAS needs where it splits the sum."""
    return multiply(_halves(x), _halves(weight))


def _halves(matrix: Tensor) -> Tensor:
    """[N, K] -> [2, N, K / 2]"""
    return matrix.view(len(matrix), 2, -1).transpose(0, 1)


def logits_room(rows: int, head: Tensor) -> Tensor:
    """Where the logits of `rows` positions go: uninitialised float32 [rows, V]. head: [V, C]."""
    return torch.empty((rows, len(head)), dtype=torch.float32, device=head.device)


def _head_own(hidden: Tensor, weight: Tensor, logits: Tensor) -> None:
    skinny_products([Product(hidden, weight, logits)])


def _head_by_library(hidden: Tensor, weight: Tensor, logits: Tensor) -> None:
    torch.mm(hidden, weight.T, torch.float32, out=logits)


INPUTS = {
    "one": _inputs_in_one_launch,
    "two": _inputs_lora_apart,
    "library": _inputs_by_library,
    "two beside": _inputs_lora_beside,
    "library beside": _inputs_by_library_beside,
}
LORA_UP = {"own": _lora_up_own, "products": _lora_up_as_products, "library": _lora_up_by_library}
LINEAR = {"own": _linear_own, "library": _linear_by_library}
DOWN = LINEAR | {"halves": _down_in_halves}  # beside `sparse_down`
HEAD = {"own": _head_own, "library": _head_by_library}


KINDS: dict[str, Collection[str]] = {
    "lora_up": LORA_UP,
    "inputs": INPUTS,
    "output": LINEAR,
    "up": LINEAR,
    "down": [*DOWN, "sparse"],
    "head": HEAD,
}


def open_choices(layers: int, width: int) -> Choices:
    """What was measured before on this GPU, for a model of these sizes, with these very kernels and this cuBLAS."""
    gpu = torch.cuda.get_device_name().replace(" ", "-")
    return Choices(cache_directory() / f"products-{gpu}-{layers}x{width}-{cublas_version()}.json", KINDS)


def measure_library(library: Library, blocks: Sequence[Block]) -> None:
    """Find cuBLAS's best algorithms for the large products."""
    width, inner = blocks[0].down.shape
    device = blocks[0].down.device

    def mixed(rows: int) -> Tensor:
        return torch.randn((rows, width), dtype=torch.float16, device=device)

    def hidden(rows: int) -> Tensor:
        return _sparse(rows, inner, device)

    library.measure(
        [
            Weights([block.projections for block in blocks], lambda rows: mixed(3 * rows).view(3, rows, width)),
            Weights([block.output for block in blocks], mixed),
            Weights([block.up for block in blocks], mixed),
            Weights([block.down for block in blocks], hidden),
            Weights([_halves(block.down) for block in blocks], lambda rows: _halves(hidden(rows))),
        ]
    )


def _sparse(rows: int, inner: int, device: torch.device) -> Tensor:
    """What a channel mix hands to its down projection in a trained model: a product with zeros draws less power."""
    h = torch.randn((rows, inner), dtype=torch.float16, device=device)
    return torch.where(torch.rand_like(h) < ACTIVE_SHARE, h.square(), torch.zeros_like(h))


def measure_products(
    choices: Choices, library: Library, blocks: Sequence[Block], head: Tensor, *, sparse: bool
) -> None:
    """Time every way of every product by itself. head: [V, C]."""
    width = head.shape[1]
    layers = range(len(blocks))

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float16, device=head.device)

    def inputs(rows: int) -> Mapping[str, Way]:
        mixed, up = random(len(MIX_ORDER), rows, width), LORA_UP[choices.best("lora_up", rows)]
        return _tried(INPUTS, rows, lambda way, layer: way(blocks[layer], mixed, up, library))

    def up_lora(rows: int) -> Mapping[str, Way]:
        h = {total: random(rows, total) for total in {sum(block.ranks) for block in blocks}}  # layers may differ
        ways = _tried(LORA_UP, rows, lambda way, layer: way(blocks[layer], h[sum(blocks[layer].ranks)]))
        if not takes_any_depth(head.device):
            ways.pop("products", None)
        return ways

    def linear(weight: Callable[[Block], Tensor], activation: str, rows: int) -> Mapping[str, Way]:
        x = random(rows, weight(blocks[0]).shape[1])
        return _tried(LINEAR, rows, lambda way, layer: way(x, weight(blocks[layer]), activation, library))

    def down(rows: int) -> Mapping[str, Way]:
        h = _sparse(rows, blocks[0].down.shape[1], head.device)
        ways = _tried(DOWN, rows, lambda way, layer: way(h, blocks[layer].down, "none", library))
        if sparse and rows <= SPARSE_ROWS:
            sums = torch.zeros((rows, width), dtype=torch.float32, device=h.device)
            ways["sparse"] = lambda layer: sparse_down(h, blocks[layer].down_by_neuron, sums)
        return ways

    def logits(rows: int) -> Mapping[str, Way]:
        x, room = random(rows, width), logits_room(rows, head)
        return _tried(HEAD, rows, lambda way, _: way(x, head, room))

    measured: dict[str, tuple[Sequence[int], Callable[[int], Mapping[str, Way]]]] = {
        "lora_up": (layers, up_lora),
        "inputs": (layers, inputs),
        "output": (layers, partial(linear, lambda block: block.output, "none")),
        "up": (layers, partial(linear, lambda block: block.up, "relu_squared")),
        "down": (layers, down),
        "head": (range(2), logits),
    }
    for kind, (over, ways) in measured.items():
        choices.measure(kind, over, ways)


def _tried(ways: Mapping[str, Callable[..., object]], rows: int, run: Callable[[Any, int], object]) -> dict[str, Way]:
    """`run` of each of `ways` that is worth trying for so many rows."""
    return {name: partial(run, way) for name, way in ways.items() if name in BY_LIBRARY or rows <= OWN_ROWS}
