"""The prefix cache's second level: states of prompts' beginnings as files, the least recently used first out.

A file is written beside its place and moved there, so that a reader sees all of it or nothing; what a process that
was killed had half written is deleted later. Its checksum covers the
model's fingerprint and the states' types too: a file of another model, of other types or with damaged bytes is
a miss, and is deleted. Engines of one machine may share the folder: its size is looked up, not remembered.
"""

import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from torch import Tensor

from inference.engine.state_bytes import StateFormat

log = logging.getLogger(__name__)

SUFFIX = ".state"
CHECKSUM_BYTES = 32
HALF_WRITTEN = "tmp"  # how the names of files begin that are being written; those of states are hexadecimal
STALE_SECONDS = 60.0  # nobody writes a file for this long
MOST_WAITING = 16  # states that wait to be written; more are left out


class PrefixFiles:
    """Keeps at most `most_bytes` in `folder`. `load` and `save` return at once; a thread does the work."""

    def __init__(self, folder: Path, states: StateFormat, fingerprint: str, most_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._states = states
        self._about = f"{fingerprint}\0{states.dtype}\0".encode()
        self._most_bytes = most_bytes
        self._remove_stale()
        self._names = {path.stem for path in folder.glob(f"*{SUFFIX}")}
        self._loading: dict[bytes, Future[dict[str, Tensor] | None]] = {}
        self._room = threading.Semaphore(MOST_WAITING)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prefixes")

    def __contains__(self, digest: bytes) -> bool:
        return digest.hex() in self._names

    def load(self, digest: bytes) -> "Future[dict[str, Tensor] | None]":
        """The state of that name; None if its file is gone or cannot be used."""
        future = self._loading.get(digest)
        if future is None or future.done():
            future = self._loading[digest] = self._worker.submit(self._load, digest)
        return future

    def save(self, digest: bytes, state: Mapping[str, Tensor]) -> None:
        """Take a state over, unless it is there or too many wait."""
        if digest not in self and self._room.acquire(blocking=False):
            self._names.add(digest.hex())
            self._worker.submit(self._save, digest, state)

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        last = self._worker.submit(lambda: None)
        if not wait([last], seconds).done:
            log.warning("some states of prompts were not written in time")
        self._worker.shutdown(wait=False, cancel_futures=True)

    # -- the thread -----------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _load(self, digest: bytes) -> dict[str, Tensor] | None:
        path = self._path(digest.hex())
        try:
            content = path.read_bytes()
            checksum, data = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
            if checksum != self._checksum(data):
                raise ValueError("the checksum is wrong")
            state = self._states.unpack(data)
            os.utime(path)
        except (OSError, ValueError) as error:
            log.warning("a kept state of a prompt cannot be used: %s", error)
            self._remove(path)
            return None
        finally:
            self._loading.pop(digest, None)
        return state

    def _save(self, digest: bytes, state: Mapping[str, Tensor]) -> None:
        try:
            self._write(self._path(digest.hex()), self._states.pack(state))
            self._evict()
            self._remove_stale()
        except Exception as error:  # it costs the next such prompt a prefill, and nothing else
            self._names.discard(digest.hex())
            log.warning("a state of a prompt was not written: %s", error, exc_info=not isinstance(error, OSError))
        finally:
            self._room.release()

    def _write(self, path: Path, data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=HALF_WRITTEN, delete=False) as file:
            try:
                file.write(self._checksum(data) + data)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def _remove_stale(self) -> None:
        """Delete what was being written when its process was killed."""
        for path in self._folder.glob(f"{HALF_WRITTEN}*"):
            try:
                if path.stat().st_mtime < time.time() - STALE_SECONDS:
                    path.unlink()
            except FileNotFoundError:  # another engine has deleted it, or moved it to its place
                continue

    def _evict(self) -> None:
        """Delete the files that were not used for the longest time, until the rest fits."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                stat = path.stat()
            except FileNotFoundError:  # another engine has evicted it
                continue
            found.append((stat.st_mtime_ns, stat.st_size, path))
        size = sum(size for _, size, _ in found)
        for _, bytes_, path in sorted(found):
            if size <= self._most_bytes:
                break
            self._remove(path)
            size -= bytes_

    def _remove(self, path: Path) -> None:
        self._names.discard(path.stem)
        path.unlink(missing_ok=True)

    def _checksum(self, data: bytes) -> bytes:
        return hashlib.blake2b(self._about + data, digest_size=CHECKSUM_BYTES).digest()
