"""`.pth` files of states, against PyTorch's own reading and writing."""

import io
import pickle
import zipfile
from collections.abc import Callable

import pytest
import torch

from inference.bus.messages import ModelInfo
from sessions.initial_states import keep_state
from sessions.state_file import BadStateFile, StateShape, read_state, write_state

SHAPE = StateShape(layers=2, width=128)


def saved(content: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(content, file)
    return file


def tuned(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {f"blocks.{layer}.att.time_state": torch.randn(2, 64, 64).to(dtype) for layer in range(2)}


def whole() -> dict[str, object]:
    return {"shift": torch.randn(2, 2, 128), "wkv": torch.randn(2, 2, 64, 64), "pending_ids": torch.tensor([7, 8])}


def as_tensor(values, shape: list[int]) -> torch.Tensor:
    return torch.frombuffer(bytearray(values.tobytes()), dtype=torch.float32).reshape(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_tuned_state_is_taken_as_it_is(dtype):
    tensors = tuned(dtype)
    state = read_state(saved(tensors), SHAPE)
    expected = torch.stack(list(tensors.values())).float()
    assert torch.equal(as_tensor(state.wkv, SHAPE.wkv), expected)
    assert not any(state.shift)
    assert (state.tensors, state.pending) == (2, [])


def test_parameters_and_views_are_read_too():
    all_layers = torch.randn(2, 2, 64, 64)
    content = {f"blocks.{layer}.att.time_state": torch.nn.Parameter(all_layers[layer]) for layer in range(2)}
    assert torch.equal(as_tensor(read_state(saved(content), SHAPE).wkv, SHAPE.wkv), all_layers)


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32")])
def test_what_is_written_pytorch_reads_and_so_do_we(dtypes):
    shift = torch.randn(SHAPE.shift).to(getattr(torch, dtypes[0]))
    wkv = torch.randn(SHAPE.wkv)
    data = shift.view(torch.uint8).numpy().tobytes() + wkv.numpy().tobytes()
    file = io.BytesIO()
    write_state(file, SHAPE, dtypes=dtypes, data=data, pending=[5, 65535], model_fingerprint="f" * 64)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    assert torch.equal(read["shift"], shift)
    assert torch.equal(read["wkv"], wkv)
    assert (read["pending_ids"].tolist(), read["model_fingerprint"]) == ([5, 65535], "f" * 64)
    again = read_state(file, SHAPE)
    assert torch.equal(as_tensor(again.wkv, SHAPE.wkv), wkv)
    assert torch.equal(as_tensor(again.shift, SHAPE.shift), shift.float())
    assert (again.pending, again.model_fingerprint) == ([5, 65535], "f" * 64)


class Evil:
    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return eval, ("1/0",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tuned() | {"blocks.0.att.time_state": torch.randn(2, 64, 32)}, "blocks.0.att.time_state: expected shape"),
        (dict(list(tuned().items())[:1]), "blocks.1.att.time_state: missing"),
        (tuned() | {"blocks.2.att.time_state": torch.randn(2, 64, 64)}, "blocks.2.att.time_state: a state of this"),
        (tuned() | {"blocks.0.att.time_state": torch.full((2, 64, 64), torch.nan)}, "a value is not finite"),
        (tuned() | {"blocks.0.att.time_state": torch.zeros(2, 64, 64).long()}, "floating-point tensors, found int64"),
        (tuned() | {"blocks.0.att.time_state": torch.randn(2, 64, 64).mT}, "expected contiguous tensors"),
        (whole() | {"wkv": torch.randn(2, 2, 64, 63)}, "wkv: expected shape [2, 2, 64, 64], found [2, 2, 64, 63]"),
        (whole() | {"pending_ids": torch.tensor([70_000])}, "pending_ids: expected token ids from 0 to 65535"),
        (whole() | {"pending_ids": torch.tensor([1.0])}, "pending_ids: expected at most 1024 token ids as int64"),
        ({"wkv": torch.randn(2, 2, 64, 64)}, "shift: missing"),
        ([1, 2], "expected a dict of tensors by name"),
        ({"shift": Evil()}, "eval has no place in a dict of tensors"),
    ],
)
def test_what_is_no_state_of_this_model_is_refused_by_name(content, message):
    with pytest.raises(BadStateFile, match=message.replace("[", r"\[")):
        read_state(saved(content), SHAPE)


@pytest.mark.parametrize("keep", [0, 10, 1000, -30])
def test_a_truncated_file_is_refused(keep):
    data = saved(tuned()).getvalue()[:keep]
    with pytest.raises(BadStateFile, match=r"not a \.pth archive, or a truncated one"):
        read_state(io.BytesIO(data), SHAPE)


def test_damaged_bytes_are_noticed():
    data = bytearray(saved(tuned()).getvalue())
    data[len(data) // 2] ^= 1
    with pytest.raises(BadStateFile, match="CRC"):
        read_state(io.BytesIO(bytes(data)), SHAPE)


def test_a_bomb_is_not_unpacked():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}))
        archive.writestr("x/data/0", bytes(10**6))
    with pytest.raises(BadStateFile, match="expected an archive without compression"):
        read_state(file, SHAPE)


@pytest.mark.django_db
def test_ids_that_the_model_does_not_have_are_refused_before_a_row_begins_with_them():
    model = ModelInfo(id="m", layers=2, width=128, vocab=512, parameters=1, fingerprint="f" * 64)
    file = saved(whole() | {"pending_ids": torch.tensor([7, 512])})
    with pytest.raises(BadStateFile, match="pending_ids: expected token ids from 0 to 511, got 512"):
        keep_state("me", model, "state.pth", file, file.tell())
