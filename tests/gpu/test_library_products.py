"""cuBLASLt's algorithms, called for themselves, against float64."""

import pytest
import torch
from torch import Tensor

from inference.engine.library_choice import TUNED_ROWS, Library, Weights
from kernels.library_products import PreparedProduct, Problem, offered, suits
from tests.gpu.accuracy import DEVICE, normal, poisoned_memory, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def halves(matrix: Tensor) -> Tensor:
    return matrix.view(len(matrix), 2, -1).transpose(0, 1)


def operands(kind: str, rows: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    if kind == "halves":  # of k: rows are further apart than they are long
        return halves(normal(rows, 2 * k)), halves(normal(n, 2 * k))
    batch = 3 if kind == "batch" else 1
    return normal(batch, rows, k), normal(batch, n, k)


@pytest.mark.parametrize("kind", ["one", "batch", "halves"])
@pytest.mark.parametrize("rows", [1, 131, 320, 1000])
@pytest.mark.parametrize(("n", "k"), [(768, 768), (3072, 768), (256, 4096)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_algorithm_matches_float64(kind: str, rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    x, w = operands(kind, rows, n, k)
    y = torch.empty((len(x), rows, n), dtype=dtype, device=DEVICE)
    problem = Problem.of(x, w, y)
    names = dict.fromkeys([*offered(problem), *offered(Problem.plain(4096, 4096, 4096))])
    suitable = [name for name in names if suits(problem, name)]
    assert suitable
    exact = torch.bmm(x.double(), w.double().mT)
    for name in suitable:
        y.fill_(torch.nan)
        PreparedProduct(problem, name)(x, w, y)
        assert relative_error(y, exact) < 1e-3, name


def test_an_algorithm_that_does_not_suit_is_refused() -> None:
    x, w = normal(1, 64, 60), normal(1, 64, 60)  # rows of 120 bytes
    y = torch.empty((1, 64, 64), dtype=torch.float16, device=DEVICE)
    name = offered(Problem.plain(4096, 4096, 4096))[0]
    problem = Problem.of(x, w, y)
    assert not suits(problem, name)
    with pytest.raises(RuntimeError, match="cuBLASLt refuses"):
        PreparedProduct(problem, name)(x, w, y)


def test_measured_products_match_float64_for_any_rows() -> None:
    layers = [normal(512, 256) for _ in range(4)]
    library = Library({})
    library.measure([Weights(layers, lambda rows: normal(rows, 256))])
    assert [*map(len, library.algorithms.values())] == [len(TUNED_ROWS)]
    for rows in (5, 128, 129, 777, 5000):
        x = normal(rows, 256)
        with poisoned_memory():
            y = library(x, layers[0])
        assert relative_error(y, x.double() @ layers[0].double().T) < 1e-3
