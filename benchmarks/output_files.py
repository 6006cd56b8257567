"""Files that are to be written at the end of something long: refused before it begins rather than after."""

import errno
import json
import os
from pathlib import Path
from typing import Any


def writable(path: Path) -> Path:
    """The path itself. Raises OSError where no such file could be written, though its folders may be missing yet."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if there != path and not there.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(there))
    return path


def write(path: Path, content: bytes) -> None:
    """With the folders it lies in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """As `write`, for people to read as well."""
    write(path, (json.dumps(value, indent=2) + "\n").encode())
