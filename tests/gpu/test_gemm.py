"""Products of few rows against float64, through the kernel for this GPU and the portable one."""

import pytest
import torch

from kernels import skinny_gemm
from kernels.skinny_gemm import ACTIVATIONS, Product, products_reference, skinny_products, takes_any_depth
from tests.gpu.accuracy import DEVICE, normal, relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ROWS = [1, 3, 8, 9, 16, 17, 31, 33, 64, 65, 127, 128, 300]


@pytest.fixture(params=["this GPU's", "portable"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setattr(skinny_gemm, "_HOPPER", None)


def poisoned(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def product(m: int, n: int, k: int, y: torch.Tensor, activation: str = "none") -> Product:
    return Product(normal(m, k), normal(n, k, scale=k**-0.5), y, activation)


def check(products: list[Product], tolerance: float = 1e-3) -> None:
    skinny_products(products)
    for each in products:
        exact = torch.empty(each.y.shape, dtype=torch.float64, device=DEVICE)
        products_reference([each._replace(y=exact)])
        assert relative_error(each.y, exact) < tolerance, (each.x.shape, each.w.shape, each.activation)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(
    ("k", "n"),
    [(128, 4096), (768, 768), (1024, 4096), (2560, 10240), (4096, 32), (4096, 4096), (4096, 16384), (16384, 4096)],
)
@pytest.mark.parametrize("activation", ["none", "relu_squared"])
def test_one_product_matches_float64(k: int, n: int, m: int, activation: str) -> None:
    check([product(m, n, k, poisoned(m, n), activation)])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("width", "ranks"), [(768, [64, 64, 32, 128]), (4096, [128, 128, 96, 480])])
def test_a_layers_inputs_in_one_launch(width: int, ranks: list[int], m: int) -> None:
    """Several groups, each with its own x, activation and y, which are column slices side by side."""
    h = poisoned(m, sum(ranks) + 32)
    parts = h[:, : sum(ranks)].split(ranks, dim=1)
    large = [product(m, width, width, poisoned(m, width)) for _ in range(3)]
    small = [
        product(m, rank, width, y, activation) for rank, y, activation in zip(ranks, parts, ACTIVATIONS, strict=True)
    ]
    check(large + small)
    assert h[:, sum(ranks) :].isnan().all()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(("width", "ranks"), [(2048, [96, 96, 64, 256]), (4096, [128, 128, 96, 480])])
def test_low_rank_inputs_alone(width: int, ranks: list[int], m: int) -> None:
    parts = poisoned(m, sum(ranks)).split(ranks, dim=1)
    check([product(m, rank, width, y, "sigmoid") for rank, y in zip(ranks, parts, strict=True)])


@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize(
    ("width", "ranks"), [(768, [64, 64, 32, 128]), (2048, [96, 96, 96, 256]), (4096, [128, 128, 96, 480])]
)
def test_products_of_unequal_depth_from_slices_of_columns(width: int, ranks: list[int], m: int) -> None:
    if not takes_any_depth(DEVICE):
        pytest.skip("this GPU's kernel takes products of one depth")
    h = normal(m, sum(ranks))
    check(
        [
            Product(x, normal(width, rank, scale=rank**-0.5), poisoned(m, width))
            for x, rank in zip(h.split(ranks, dim=1), ranks, strict=True)
        ]
    )


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("m", [1, 16, 33, 64])
def test_fp32_outputs_are_not_rounded(m: int) -> None:
    check([product(m, 65536, 1024, poisoned(m, 65536, dtype=torch.float32))], tolerance=1e-5)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("m", [1, 20, 64])
def test_repeated_launches_give_the_same_bits(m: int) -> None:
    """Blocks that share a tile add up in one order; what they tell each other is reset after each launch."""
    products = [product(m, 4096, 4096, poisoned(m, 4096)), product(m, 96, 4096, poisoned(m, 96), "tanh")]
    skinny_products(products)
    first = [each.y.clone() for each in products]
    for _ in range(50):
        skinny_products(products)
    assert all(torch.equal(each.y, y) for each, y in zip(products, first, strict=True))


@pytest.mark.usefixtures("kernel")
def test_waits_for_the_kernel_that_computes_its_input() -> None:
    """Weights are fetched early, x is not: a chain gives what its links give one by one."""
    links = [product(5, 2048, 2048, poisoned(5, 2048)) for _ in range(20)]
    chain = [links[0]]
    for link in links[1:]:
        chain.append(link._replace(x=chain[-1].y))
    for link in chain:
        skinny_products([link])
    for link in chain:
        again = link._replace(y=poisoned(5, 2048))
        torch.cuda.synchronize()
        skinny_products([again])
        torch.cuda.synchronize()
        assert torch.equal(again.y, link.y)


@pytest.mark.usefixtures("kernel")
def test_refuses_other_widths() -> None:
    with pytest.raises(RuntimeError, match="could not be launched"):
        skinny_products([product(1, 48, 128, poisoned(1, 48))])


def test_the_portable_kernel_refuses_other_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skinny_gemm, "_HOPPER", None)
    with pytest.raises(RuntimeError, match="could not be launched"):
        skinny_products([product(1, 64, 96, poisoned(1, 64))])
