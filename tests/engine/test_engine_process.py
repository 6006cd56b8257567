"""What an engine process does between two models, and when it is stopped then or before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import redis

from inference.bus import keys
from inference.bus.messages import LoadModel
from inference.bus.status import read_engines
from inference.engine_process import find_checkpoints
from tests.service import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkpoints(tiny_checkpoint: Path, tmp_path: Path) -> dict[str, Path]:
    for name in ("first.pth", "second.pth", "notes.txt"):
        shutil.copy(tiny_checkpoint, tmp_path / name)
    return find_checkpoints(tmp_path / "first.pth")


@pytest.mark.parametrize("stopped", ["", "closing", "loading"])
def test_an_engine_becomes_the_next_one_unless_it_is_stopped(checkpoints, redis_url, tmp_path, stopped):
    assert [*checkpoints] == ["first", "second"]
    options = [str(checkpoints["first"]), stopped]
    env = os.environ | {"REDIS_URL": redis_url, "VAR_DIR": str(tmp_path), "ENGINE_DEVICE": "cpu", "ENGINE_SLOTS": "2"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.changing_process", *options],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with redis.Redis.from_url(redis_url) as connection:
            connection.flushall()

            def is_told() -> bool:
                """Engines hear what is said from the moment on at which they listen."""
                names = [engine.engine for engine in read_engines(connection) if engine.state == "ready"]
                connection.xadd(keys.CANCEL, {"load": msgspec.msgpack.encode(LoadModel(names, "second"))})
                return process.poll() is not None or any(
                    engine.state == "draining" for engine in read_engines(connection)
                )

            wait_until(is_told, 90, "the engine changes models")
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    next_one = f"engine --model {checkpoints['second']} --fallback {checkpoints['first']}\n"
    expected = {"": next_one, "closing": "", "loading": "loading\n"}
    assert (process.returncode, printed) == (0, expected[stopped])
    with redis.Redis.from_url(redis_url) as connection:
        assert stopped == "" or not connection.smembers(keys.ENGINES), "it has signed off"
