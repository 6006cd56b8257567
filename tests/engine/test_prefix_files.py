"""States of prompts' beginnings in files, behind a real engine."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from inference.bus.messages import Generate, History, Sampling
from inference.engine.engine import Engine
from inference.engine.prefix_files import CHECKSUM_BYTES, HALF_WRITTEN, SUFFIX, PrefixFiles
from inference.engine.state_bytes import StateFormat
from inference.engine.state_cache import StateCache, state_bytes
from inference.engine.torch_backend import TorchBackend
from inference.history import BLOCK, root
from tests.service import wait_until

SECONDS = 30.0  # for what takes milliseconds
ONE, OTHER = [5] * (2 * BLOCK + 1), [6] * (2 * BLOCK + 1)


class Process:
    """What an engine process has, with room for two prefixes in memory."""

    def __init__(self, backend: TorchBackend, folder: Path, files: int = 100) -> None:
        example = backend.export_state(0)
        size = state_bytes(example) + CHECKSUM_BYTES
        self.files = PrefixFiles(folder, StateFormat(example), backend.model.fingerprint, files * size)
        self.cache = StateCache(backend, prefix_bytes=2 * state_bytes(example), prefix_store=self.files)
        self.engine = Engine(backend, step_tokens=BLOCK, states=self.cache)
        self._root = History(digest=root(backend.model.fingerprint, "me"))

    def ask(self, prompt: list[int]) -> tuple[list[int], int]:
        """The greedy reply, and how many of the prompt's tokens were cached."""
        sampling = Sampling(temperature=0.0)
        self.engine.submit(
            Generate(web="", row=0, model="", prompt=prompt, max_tokens=3, sampling=sampling, history=self._root)
        )
        tokens, cached = [], 0
        while self.engine.has_work:
            for _web, output in self.engine.step():
                tokens += output.tokens
                cached = output.cached_tokens or cached
        return tokens, cached

    def stop(self) -> None:
        self.cache.store_prefixes()
        self.files.close(SECONDS)


@pytest.fixture(scope="module")
def backend(tiny_checkpoint: Path) -> TorchBackend:
    return TorchBackend(tiny_checkpoint, slots=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_what_falls_out_of_memory_is_found_in_files(backend, folder):
    process = Process(backend, folder)
    first, cached = process.ask(ONE)
    assert cached == 0
    process.ask(OTHER)
    wait_until(lambda: len(stored(folder)) == 2, 10, "the first prompt's states are written")
    assert process.ask(ONE) == (first, 2 * BLOCK)
    process.stop()


def test_a_stopped_engine_leaves_its_prefixes_to_the_next(backend, folder):
    process = Process(backend, folder)
    reply, _ = process.ask(ONE)
    process.stop()
    after = Process(backend, folder)
    assert after.ask(ONE) == (reply, 2 * BLOCK)
    after.stop()


@pytest.mark.parametrize("damage", ["bytes", "cut", "gone", "other model"])
def test_a_file_that_cannot_be_used_is_a_miss(backend, folder, damage):
    process = Process(backend, folder)
    reply, _ = process.ask(ONE)
    process.stop()
    after = Process(backend, folder)
    for path in stored(folder):
        content = path.read_bytes()
        match damage:
            case "bytes":
                path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            case "cut":
                path.write_bytes(content[:-1])
            case "gone":
                path.unlink()
            case "other model":
                example = backend.export_state(0)
                other = PrefixFiles(folder / "other", StateFormat(example), "other", 10**9)
                other.save(bytes.fromhex(path.stem), example)
                other.close(SECONDS)
                (folder / "other" / path.name).replace(path)
    assert after.ask(ONE) == (reply, 0)
    assert after.ask(ONE) == (reply, 2 * BLOCK), "it was kept anew"
    after.stop()


def test_the_files_keep_to_their_budget_and_the_least_recently_used_go(backend, folder):
    process = Process(backend, folder, files=3)
    process.ask(ONE)
    process.stop()
    kept = stored(folder)
    os.utime(kept[0], (0, 0))
    after = Process(backend, folder, files=3)
    after.ask(OTHER)
    after.stop()
    assert len(stored(folder)) == 3
    assert kept[0] not in stored(folder)
    assert kept[1] in stored(folder)


def test_a_file_that_cannot_be_written_costs_a_state_and_nothing_else(backend, folder):
    process = Process(backend, folder)
    reply, _ = process.ask(ONE)
    folder.rmdir()
    process.stop()
    after = Process(backend, folder)
    assert after.ask(ONE) == (reply, 0)
    after.stop()


def test_a_disk_that_is_full_leaves_no_file_behind(backend, folder):
    example = backend.export_state(0)
    files = PrefixFiles(folder, StateFormat(example), "model", 10**9)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write beyond the limit is an OSError
    resource.setrlimit(resource.RLIMIT_FSIZE, (state_bytes(example) // 2, limits[1]))
    try:
        files.save(b"name", example)
        files.close(SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(folder.iterdir()) == []
    assert b"name" not in files


def test_what_a_killed_process_had_half_written_is_deleted(backend, folder):
    folder.mkdir()
    old, young = folder / f"{HALF_WRITTEN}old", folder / f"{HALF_WRITTEN}young"
    for path in (old, young):
        path.write_bytes(b"half a state")
    os.utime(old, (0, 0))
    files = PrefixFiles(folder, StateFormat(backend.export_state(0)), "model", 10**9)
    assert list(folder.iterdir()) == [young], "another engine may be writing it"
    os.utime(young, (0, 0))
    files.save(b"name", backend.export_state(0))
    files.close(SECONDS)
    assert [path.name for path in folder.iterdir()] == [f"{b'name'.hex()}{SUFFIX}"]


def test_a_state_comes_back_bit_for_bit(backend, folder):
    example = {name: torch.randn_like(tensor) for name, tensor in backend.export_state(0).items()}
    files = PrefixFiles(folder, StateFormat(example), "model", 10**9)
    files.save(b"name", example)
    loaded = files.load(b"name").result()
    files.close(SECONDS)
    assert loaded is not None
    assert all(torch.equal(loaded[name], example[name]) for name in example)
    assert [path.name for path in folder.iterdir()] == [f"{b'name'.hex()}{SUFFIX}"], "nothing half-written is left"
