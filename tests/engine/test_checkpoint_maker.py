import numpy as np
import pytest
import torch
from django.core.management import CommandError, call_command
from safetensors.torch import load_file

from inference.engine.synthetic import SIZES, make_checkpoint
from inference.engine.weights import Checkpoint
from inference.management.commands.make_checkpoint import Command
from tests.engine.reference import ReferenceModel, log_softmax


def random_ids(count, vocab):
    return torch.randint(1, vocab, (count,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("0.1b", 191_084_544),
        ("0.4b", 450_834_432),
        ("1.5b", 1_527_668_736),
        ("2.9b", 2_948_065_280),
        ("7.2b", 7_199_932_416),
        ("13.3b", 13_270_298_624),
    ],
)
def test_sizes_are_those_of_the_official_models(size, parameters):
    layers, width, *ranks = SIZES[size]
    per_layer = 12 * width**2 + 2 * width * sum(ranks) + 19 * width
    assert layers * per_layer + 4 * width + 2 * 65536 * width == parameters


def test_a_whole_model_has_its_official_size(small_checkpoint):
    assert Checkpoint(small_checkpoint).info.parameters == 191_084_544


def test_the_seed_decides_the_weights(tmp_path):
    def fingerprint(name, seed):
        make_checkpoint(tmp_path / name, "tiny", seed=seed, vocab=64)
        return Checkpoint(tmp_path / name).info.fingerprint

    first = fingerprint("a.pth", 1)
    assert fingerprint("b.safetensors", 1) == first
    assert fingerprint("c.pth", 2) != first


@pytest.mark.parametrize("sparsity", [0.9, 0.7])
def test_the_channel_mix_is_as_sparse_as_asked(tmp_path, deep_checkpoint, sparsity):
    path = deep_checkpoint
    if sparsity != 0.9:
        path = tmp_path / "tiny.pth"
        make_checkpoint(path, "tiny", sparsity=sparsity, vocab=512)
    model = ReferenceModel(path)
    model.run(random_ids(32, 512))
    assert np.mean(model.zeros) == pytest.approx(sparsity, abs=0.02)


def test_the_next_token_is_peaked_and_never_the_end_of_text(tiny_checkpoint):
    logits = ReferenceModel(tiny_checkpoint).run(random_ids(64, 65530))
    logprobs = log_softmax(logits)
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=1)
    assert 1.5 < np.median(entropy) < 5.5
    never = logits[:, [0, *range(65530, 65536)]]
    assert never.max() < -10
    assert never.mean() == pytest.approx(-40, abs=5)


def test_activations_stay_of_order_one(deep_checkpoint):
    model = ReferenceModel(deep_checkpoint)
    logits = model.run(random_ids(64, 512))
    assert np.abs(model.S).max() < 20
    assert 2 < logits[-8:, 1:].std() < 8


def test_a_prompt_changes_what_comes_much_later(deep_checkpoint):
    """The logits depend on the state, so a wrong state shows: official initial weights would hide it."""
    tail = random_ids(16, 512)
    model = ReferenceModel(deep_checkpoint)
    assert np.abs(model.run([7, 8, 9, *tail])[-1] - model.run([10, 11, 12, *tail])[-1]).max() > 1e-3


def test_the_command_writes_what_was_asked_for(tmp_path, capsys):
    path = tmp_path / "made.safetensors"
    call_command(Command(), str(path), size="tiny", dtype="float16", vocab=300, seed=4)
    assert load_file(path)["emb.weight"].dtype == torch.float16
    info = Checkpoint(path).info
    assert (info.id, info.vocab, info.random) == ("made", 300, True)
    assert list(tmp_path.iterdir()) == [path]
    captured = capsys.readouterr()
    assert f"{path}: tiny" in captured.out
    assert "100%" in captured.err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("model.bin", {}, "must end in .pth or .safetensors"),
        ("absent/model.pth", {}, "there is no folder"),
        ("model.pth", {"sparsity": 1.0}, "--sparsity: 1.0 must be between 0 and 1"),
        ("model.pth", {"vocab": 1}, "--vocab: 1 must be at least 2"),
    ],
)
def test_the_command_refuses_what_it_cannot_make(tmp_path, name, options, message):
    with pytest.raises(CommandError, match=message):
        call_command(Command(), str(tmp_path / name), size="tiny", **options)
    assert not list(tmp_path.iterdir())


def test_the_command_never_overwrites(tmp_path):
    path = tmp_path / "precious.pth"
    path.write_text("trained for months")
    with pytest.raises(CommandError, match="exists already"):
        call_command(Command(), str(path), size="tiny")
    assert path.read_text() == "trained for months"
