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
from kernels.library_products import Problem, multiply, offered, suits

log = logging.getLogger(__name__)

LEAST_ROWS = 128  # with fewer, reading the weights is what counts, and our own kernels do that
TUNED_ROWS = [rows for rows in MEASURED_ROWS if rows >= LEAST_ROWS]
GUESS = ""  # the algorithm that cuBLAS would take
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

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """x [M, K], w [N, K] -> x w^T [M, N]; or batches of them."""
        algorithm = self._best(w, x.shape[-2])
        if algorithm != GUESS:
            y = x.new_empty((*x.shape[:-1], w.shape[-2]))
            matrices = _batched(x), _batched(w), _batched(y)
            if suits(Problem.of(*matrices), algorithm):  # it did for the number of rows that was measured
                multiply(*matrices, algorithm)
                return y
        return torch.matmul(x, w.mT)

    def _best(self, w: Tensor, rows: int) -> str:
        best = self.algorithms.get(_name(w))
        if best is None or rows < LEAST_ROWS:
            return GUESS
        return best[min(bisect.bisect_left(TUNED_ROWS, rows), len(TUNED_ROWS) - 1)]

    def measure(self, products: Sequence[Weights]) -> None:
        """Find the best algorithms for all of `products`."""
        pool = _pool([_batched(product.layers[0]) for product in products])
        for product in products:
            count = -(-READ_BYTES // product.layers[0].nbytes)
            layers = product.layers[:: max(len(product.layers) // count, 1)][:count]
            self.algorithms[_name(layers[0])] = [_fastest(layers, product.inputs(rows), pool) for rows in TUNED_ROWS]


def _pool(weights: Sequence[Tensor]) -> list[str]:
    """What is offered for matrices like `weights`, [B, N, K], and for others of these sizes."""
    sizes = {n for _, n, _ in (w.shape for w in weights)} | {n // 4 for _, n, _ in (w.shape for w in weights)}
    depths = {k for _, _, k in (w.shape for w in weights)}
    problems = [Problem.plain(rows, n, k) for rows in TUNED_ROWS for n in sorted(sizes) for k in sorted(depths)]
    return list(dict.fromkeys(name for problem in problems for name in offered(problem)))


def _fastest(layers: Sequence[Tensor], x: Tensor, pool: Sequence[str]) -> str:
    x, y = _batched(x), x.new_empty((*_batched(x).shape[:2], layers[0].shape[-2]))
    weights = [_batched(w) for w in layers]
    problem = Problem.of(x, weights[0], y)
    names = dict.fromkeys([*offered(problem), *(name for name in pool if suits(problem, name))])

    def run(name: str) -> None:
        for w in weights:
            if name == GUESS:
                torch.bmm(x, w.mT, out=y)
            else:
                multiply(x, w, y, name)

    runs = {name: partial(run, name) for name in [GUESS, *names]}
    for warm_up in runs.values():
        warm_up()
    once = {name: milliseconds(runs[name]) for name in names}
    closest = sorted(names, key=lambda name: once[name])[:CLOSEST]
    times = medians({name: recorded(runs[name]) for name in [GUESS, *closest]})
    best = min(times, key=lambda name: times[name])
    log.debug("%s: %.3f ms by %s, %.3f by guess", problem, times[best], best or "guess", times[GUESS])
    return best if times[best] < BETTER * times[GUESS] else GUESS


def _batched(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() == 3 else matrix.unsqueeze(0)


def _name(w: Tensor) -> str:
    return "x".join(str(size) for size in _batched(w).shape)
