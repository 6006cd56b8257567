"""Random checkpoints that the engine's tests share; each is made once."""

import pytest

from inference.engine.synthetic import make_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """Two layers of width 128 over the full vocabulary."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.pth"
    make_checkpoint(path, "tiny")
    return path


@pytest.fixture(scope="session")
def deep_checkpoint(tmp_path_factory):
    """The twelve layers of the 0.1B model, and 512 ids."""
    path = tmp_path_factory.mktemp("deep") / "deep.pth"
    make_checkpoint(path, "0.1b", vocab=512)
    return path


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory):
    """The whole 0.1B model."""
    path = tmp_path_factory.mktemp("small") / "small.pth"
    make_checkpoint(path, "0.1b")
    return path
