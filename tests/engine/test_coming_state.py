"""States that a device is still copying to the host, in the hands of those that keep and write them."""

from concurrent.futures import Future

import pytest
import torch

from inference.engine.coming_state import ComingState
from inference.engine.prefix_files import PrefixFiles
from inference.engine.state_bytes import StateFormat
from inference.engine.state_cache import state_bytes

SECONDS = 30.0  # for what takes milliseconds
STATE = {"shift": torch.arange(6.0).half().reshape(2, 3), "wkv": torch.arange(8.0).reshape(2, 4)}
SIZE = state_bytes(STATE)


@pytest.fixture
def future():
    return Future()


@pytest.fixture
def state(future):
    return ComingState(STATE, SIZE, future)


def test_names_and_size_are_known_before_it_comes(state):
    assert list(state) == list(STATE)
    assert len(state) == 2
    assert state
    assert "wkv" in state
    assert "other" not in state
    assert state_bytes(state) == 2 * 6 + 4 * 8


def test_what_has_come_is_the_state(state, future):
    future.set_result(STATE)
    assert dict(state) == STATE
    assert StateFormat(state).pack(state) == StateFormat(STATE).pack(STATE)
    with pytest.raises(KeyError):
        state["other"]


def test_a_copy_that_failed_is_an_error_for_everyone_who_looks(state, future):
    future.set_exception(RuntimeError("CUDA error: an illegal memory access was encountered"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a state did not come to the host: CUDA error: an illegal memory"):
            state["wkv"]
    assert state_bytes(state) == SIZE, "who has counted it can take it off again"


def test_the_prefix_files_wait_in_their_own_thread(tmp_path, state, future):
    files = PrefixFiles(tmp_path, StateFormat(STATE), "model", 10**9)
    files.save(b"name", state)
    future.set_result(STATE)
    loaded = files.load(b"name").result(SECONDS)
    files.close(SECONDS)
    assert loaded.keys() == STATE.keys()
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)


def test_the_prefix_files_do_without_a_state_that_failed(tmp_path, state, future, caplog):
    files = PrefixFiles(tmp_path, StateFormat(STATE), "model", 10**9)
    files.save(b"name", state)
    future.set_exception(RuntimeError("CUDA error"))
    files.close(SECONDS)
    assert b"name" not in files
    assert list(tmp_path.iterdir()) == []
    assert "a state of a prompt was not written: a state did not come to the host: CUDA error" in caplog.text
