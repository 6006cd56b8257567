"""Which of cuBLASLt's algorithms computes a product of many rows: measured, at start-up, once per GPU.

cuBLAS's own guess takes up to a tenth longer than the best that it has, most where tiles do not fit the rows. What it
offers for any of the model's shapes is tried for all that it suits.
"""

import bisect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inference.engine.measuring import BETTER, MEASURED_ROWS, medians, milliseconds, recorded
from kernels.library_products import PreparedProduct, Problem, offered, suits

log = logging.getLogger(__name__)

LEAST_ROWS = 128  # with fewer, reading the weights is what counts, and our own kernels do that
TUNED_ROWS = [rows for rows in MEASURED_ROWS if rows >= LEAST_ROWS]
GUESS = ""  # the algorithm that cuBLAS would take
NEAR = 0.95  # of the rows that were measured: with fewer, cuBLAS's guess may be the better one
CLOSEST = 5  # algorithms that are compared with care
READ_BYTES = 2**28  # of weights in a comparison, several times what a cache holds

Algorithms = dict[str, list[str]]  # product -> the best for each of TUNED_ROWS


@dataclass(frozen=True)
class Weights:
    """One matrix, or a batch of them, of every layer: [N, K] or [B, N, K]. `inputs(rows)` are typical x for them."""

    layers: Sequence[Tensor]
    inputs: Callable[[int], Tensor]


class Library:
    """Products by cuBLAS, each by the algorithm that was fastest for its shape and so many rows."""

    def __init__(self, algorithms: Algorithms) -> None:
        self.algorithms = algorithms
        # By shapes and strides; None: as cuBLAS likes.
        self._ready: dict[tuple[object, ...], PreparedProduct | None] = {}

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """x [M, K], w [N, K] -> x w^T [M, N]; or batches of them."""
        shapes = x.shape, x.stride(), w.shape, w.stride()
        if shapes not in self._ready:
            self._ready[shapes] = self._prepared(x, w)
        product = self._ready[shapes]
        if product is None:
            return torch.matmul(x, w.mT)
        y = _room_for(x, w)
        product(x, w, y)
        return y

    def _prepared(self, x: Tensor, w: Tensor) -> PreparedProduct | None:
        algorithm = nearest(self.algorithms.get(_name(w), ()), x.shape[-2])
        if algorithm == GUESS:
            return None
        problem = Problem.of(*map(_batched, (x, w, _room_for(x, w))))
        # It suits the number of rows that was measured.
        return PreparedProduct(problem, algorithm) if suits(problem, algorithm) else None

    def measure(self, products: Sequence[Weights]) -> None:
        """Find the best algorithms for all of `products`."""
        pool = _pool([_batched(product.layers[0]) for product in products])
        for product in products:
            count = -(-READ_BYTES // product.layers[0].nbytes)
            layers = product.layers[:: max(len(product.layers) // count, 1)][:count]
            self.algorithms[_name(layers[0])] = [_fastest(layers, product.inputs(rows), pool) for rows in TUNED_ROWS]
        self._ready.clear()


def nearest(best: Sequence[str], rows: int) -> str:
    """Of `best`, one for each of TUNED_ROWS, that of the next larger number of rows, or GUESS where that is far off.

    An algorithm that suits 448 rows can be slower for 408 than cuBLAS's guess, which goes by the very number.
    """
    place = bisect.bisect_left(TUNED_ROWS, rows)
    if not best or place == len(TUNED_ROWS) or rows < NEAR * TUNED_ROWS[place]:
        return GUESS
    return best[place]


def _pool(weights: Sequence[Tensor]) -> list[str]:
    """What is offered for matrices like `weights`, [B, N, K], and for others of these sizes."""
    sizes = sorted({size for w in weights for size in (w.shape[1], w.shape[1] // 4)})
    depths = sorted({w.shape[2] for w in weights})
    problems = [Problem.plain(rows, n, k) for rows in TUNED_ROWS for n in sizes for k in depths]
    return list(dict.fromkeys(name for problem in problems for name in offered(problem)))


def _fastest(layers: Sequence[Tensor], x: Tensor, pool: Sequence[str]) -> str:
    y = _room_for(x, layers[0])
    problem = Problem.of(*map(_batched, (x, layers[0], y)))
    names = dict.fromkeys([*offered(problem), *(name for name in pool if suits(problem, name))])

    def run(product: Callable[[Tensor, Tensor, Tensor], object]) -> None:
        for w in layers:
            product(x, w, y)

    products: dict[str, Callable[[Tensor, Tensor, Tensor], None]] = {
        GUESS: _by_guess,
        **{name: PreparedProduct(problem, name) for name in names},
    }
    runs = {name: partial(run, product) for name, product in products.items()}
    for warm_up in runs.values():
        warm_up()
    once = {name: milliseconds(runs[name]) for name in names}
    closest = sorted(names, key=lambda name: once[name])[:CLOSEST]
    times = medians({name: recorded(runs[name]) for name in [GUESS, *closest]})
    best = min(times, key=lambda name: times[name])
    log.debug("%s: %.3f ms by %s, %.3f by guess", problem, times[best], best or "guess", times[GUESS])
    return best if times[best] < BETTER * times[GUESS] else GUESS


def _by_guess(x: Tensor, w: Tensor, y: Tensor) -> None:
    torch.matmul(x, w.mT, out=y)


def _room_for(x: Tensor, w: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[-2]))


def _batched(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() == 3 else matrix.unsqueeze(0)


def _name(w: Tensor) -> str:
    return "x".join(str(size) for size in _batched(w).shape)
