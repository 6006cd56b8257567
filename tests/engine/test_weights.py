import os
import re

import pytest
import torch
from safetensors.torch import save_file

from inference.engine.backend import Chunk, StepPlan
from inference.engine.model import Model, StatePool
from inference.engine.torch_backend import TorchBackend
from inference.engine.weights import Checkpoint, CheckpointError
from kernels.packed import PackedRows

CPU = torch.device("cpu")


@pytest.fixture
def tensors(tiny_checkpoint):
    return torch.load(tiny_checkpoint, weights_only=True)


@pytest.fixture
def save(tmp_path):
    def save(tensors, name="changed.pth"):
        path = tmp_path / name
        if path.suffix == ".safetensors":
            save_file(tensors, path)
        else:
            torch.save(tensors, path)
        return path

    return save


def logits(path):
    model = Model(Checkpoint(path), CPU, torch.float32)
    tokens = torch.tensor([11, 65000, 3, 42, 11])
    state = StatePool.zeros(model.sizes, 1, CPU, torch.float32)
    return model.logits(model.forward(tokens, state, PackedRows([0], [len(tokens)], CPU)))


def refused(path):
    """The error's text, which must be one line that begins with the file's name."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_a_checkpoint_says_about_itself(tiny_checkpoint):
    os.utime(tiny_checkpoint, (0, 1_700_000_000))
    info = Checkpoint(tiny_checkpoint).info
    assert (info.id, info.layers, info.width, info.vocab) == ("tiny", 2, 128, 65536)
    assert info.parameters == 2 * (12 * 128**2 + 2 * 128 * 128 + 19 * 128) + 4 * 128 + 2 * 65536 * 128
    assert info.random
    assert info.created == 1_700_000_000
    assert re.fullmatch("[0-9a-f]{64}", info.fingerprint)


def test_groups_come_in_the_order_of_the_forward_pass(tiny_checkpoint):
    shares = []
    groups = dict(Checkpoint(tiny_checkpoint).groups(shares.append))
    assert list(groups) == ["emb", "blocks.0", "blocks.1", "head"]
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert set(groups["emb"]) == {"emb.weight", "ln0.weight", "ln0.bias"}
    assert set(groups["blocks.1"]) - set(groups["blocks.0"]) == {"att.v0", "att.v1", "att.v2"}
    assert groups["blocks.1"]["att.v0"].shape == (128,)


def test_block_0_may_lack_the_value_residual(tiny_checkpoint, tensors, save):
    for name in ("v0", "v1", "v2"):
        del tensors[f"blocks.0.att.{name}"]
    path = save(tensors)
    assert torch.equal(logits(path), logits(tiny_checkpoint))
    assert Checkpoint(path).info.fingerprint == Checkpoint(tiny_checkpoint).info.fingerprint


def test_vectors_may_be_stored_flat(tiny_checkpoint, tensors, save):
    path = save({name: tensor.squeeze() for name, tensor in tensors.items()})
    assert torch.equal(logits(path), logits(tiny_checkpoint))


def test_low_ranks_are_read_from_each_layers_tensors(tensors, save):
    tensors |= {"blocks.1.att.w1": torch.zeros(128, 16), "blocks.1.att.w2": torch.zeros(16, 128)}
    assert logits(save(tensors)).isfinite().all()


def test_a_safetensors_twin_is_the_same_model(tiny_checkpoint, tensors, save):
    path = save(tensors, "twin.safetensors")
    twin, original = Checkpoint(path).info, Checkpoint(tiny_checkpoint).info
    assert (twin.fingerprint, twin.parameters, twin.random) == (original.fingerprint, original.parameters, True)
    assert torch.equal(logits(path), logits(tiny_checkpoint))


def test_fingerprints_differ_with_the_weights(tiny_checkpoint, tensors, save):
    tensors["blocks.1.att.r_k"][1, 5] += 1
    changed = Checkpoint(save(tensors)).info
    assert changed.fingerprint != Checkpoint(tiny_checkpoint).info.fingerprint


def test_trained_weights_are_not_called_random(tensors, save):
    del tensors["random_weights"]
    assert not Checkpoint(save(tensors)).info.random


def test_tensors_outside_the_blocks_are_ignored(tensors, save, tiny_checkpoint):
    path = save(tensors | {"training_step": torch.tensor(5), "note": "text"})
    assert Checkpoint(path).info.parameters == Checkpoint(tiny_checkpoint).info.parameters


def test_a_loaded_model_does_not_need_its_file(tensors, save):
    """Even if the file has the dtype that the back end wants, so that nothing has to be converted."""
    path = save({name: tensor.float() for name, tensor in tensors.items()})
    backend = TorchBackend(path, slots=1)
    plan = StepPlan(chunks=[Chunk(0, [5, 6], False, prompt_logprobs=0)])
    zero_state = backend.export_state(0)
    before = backend.launch(plan).result()
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    backend.import_state(0, zero_state)
    assert backend.launch(plan).result().prompt_logprobs == before.prompt_logprobs


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("head.weight", "[65536, 128]"),
        ("ln_out.bias", "[128]"),
        ("blocks.1.att.v2", "[32, 128]"),
        ("blocks.0.att.w1", "[128, any]"),
        ("blocks.1.ffn.value.weight", "[128, 512]"),
    ],
)
def test_a_missing_tensor_is_named(tensors, save, name, shape):
    del tensors[name]
    assert refused(save(tensors)) == f"tensor {name} is missing, expected shape {shape}"


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blocks.1.att.key.weight", (128, 64), "[128, 128]"),
        ("blocks.0.att.r_k", (4, 32), "[2, 64]"),
        ("blocks.1.att.x_g", (1, 1, 64), "[128]"),
        ("blocks.0.att.g2", (16, 128), "[32, 128]"),
        ("blocks.0.ffn.key.weight", (512, 1, 128), "[any, 128]"),
        ("head.weight", (65530, 128), "[65536, 128]"),
    ],
)
def test_a_wrong_shape_is_named(tensors, save, name, shape, expected):
    tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
    assert refused(save(tensors)) == f"tensor {name} has shape {list(shape)}, expected {expected}"


def test_a_wrong_dtype_is_named(tensors, save):
    tensors["blocks.0.ln1.bias"] = torch.zeros(128, dtype=torch.int8)
    expected = "tensor blocks.0.ln1.bias is int8, expected one of bfloat16, float16, float32, float64"
    assert refused(save(tensors)) == expected


def test_a_value_that_is_no_tensor_counts_as_missing(tensors, save):
    tensors["ln_out.weight"] = [1.0] * 128
    assert refused(save(tensors)) == "tensor ln_out.weight is missing, expected shape [128]"


def test_a_gap_between_the_layers_is_named(tensors, save):
    tensors["blocks.3.ln1.weight"] = torch.ones(128)
    assert refused(save(tensors)) == "tensor blocks.2.ln1.weight is missing, expected shape [128]"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("blocks.0.att.time_maa_x", "RWKV-4, 5 or 6"),
        ("blocks.1.ffn.s_emb.weight", "RWKV-7a (DeepEmbed)"),
        ("blocks.1.att.conv", "another architecture"),
    ],
)
def test_other_architectures_are_refused(tensors, save, name, family):
    tensors[name] = torch.zeros(1)
    assert refused(save(tensors)) == f"tensor {name} is not part of RWKV-7 (x070): this looks like {family}"


def test_models_that_are_not_rwkv_are_refused(save):
    other = {"model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4)}
    assert refused(save(other)) == "is not an RWKV checkpoint: it has no tensors named blocks.0.*"


def test_an_embedding_that_gives_no_sizes_is_refused(tensors, save):
    emb = tensors.pop("emb.weight")
    assert refused(save(tensors)) == "emb.weight is missing, expected the shape [vocabulary, width]"
    message = refused(save(tensors | {"emb.weight": emb[:, :100].clone()}))
    assert message == "emb.weight has width 100, expected a multiple of the head size 64"


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_truncated_file_is_refused(tensors, save, suffix):
    path = save(tensors, f"cut{suffix}")
    os.truncate(path, path.stat().st_size * 2 // 3)
    assert refused(path).startswith("is truncated or damaged (")


def test_files_that_are_no_checkpoints_are_refused(tmp_path, save):
    text = tmp_path / "notes.pth"
    text.write_text("these are not weights\n")
    assert refused(text).startswith("is not a checkpoint (")
    empty = tmp_path / "empty.pth"
    empty.touch()
    assert refused(empty).startswith("is not a checkpoint (")
    assert refused(save([torch.zeros(2)])) == "holds a list, expected a mapping of names to tensors"
    assert refused(tmp_path / "absent.pth") == "there is no such file"


def test_code_in_a_pickle_is_never_run(tmp_path, save):
    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "was-run"),))

    assert "(" in refused(save({"emb.weight": Payload()}))
    assert not (tmp_path / "was-run").exists()
