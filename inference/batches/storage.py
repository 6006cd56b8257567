"""Where the contents of files are: one file each in VAR_DIR, which web and Celery workers share."""

import os
import time
from collections.abc import Collection
from pathlib import Path

from django.conf import settings

PART = ".part"
ABANDONED_SECONDS = 24 * 3600.0


def path_of(key: str) -> Path:
    return settings.RWKV.var_dir / "files" / key


class NewFile:
    """A file in the making. `keep` makes it the content of `key` in one move; without it, nothing stays.

    Use as a context manager, or close it. `attempt` keeps apart two writers of one key.
    """

    def __init__(self, key: str, attempt: str = "") -> None:
        self._path = path_of(key)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._part = self._path.with_name(f"{key}{attempt}{PART}")
        self._stream = self._part.open("wb")
        self.size = 0

    def __enter__(self) -> "NewFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.size += len(data)

    def keep(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._part.replace(self._path)

    def close(self) -> None:
        self._stream.close()
        self._part.unlink(missing_ok=True)


def remove(key: str) -> None:
    path_of(key).unlink(missing_ok=True)


def remove_abandoned(known: Collection[str]) -> None:
    """Delete what writers that were killed left behind: parts, and contents of files that nobody knows of."""
    for file in path_of("any").parent.glob("*"):
        if time.time() - file.stat().st_mtime > ABANDONED_SECONDS and file.name not in known:
            file.unlink(missing_ok=True)
