"""The secret key of this installation, made on first use."""

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key


def secret_key(var_dir: Path) -> str:
    """Return the key in `var_dir/secret_key`, which is created readable by its owner alone.

    Several processes may start at once: the first to link its file in place wins, and all read that one.
    """
    path = var_dir / "secret_key"
    if not path.exists():
        var_dir.mkdir(parents=True, exist_ok=True)
        draft = var_dir / f"secret_key.{os.getpid()}"
        draft.touch(mode=0o600)
        draft.write_text(get_random_secret_key())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()
