"""An engine process that is about to become the one for the next model.

    python -m tests.engine.changing_process CHECKPOINT [closing|loading]

Prints the command line of the next one instead of becoming it. It is told to stop just before with "closing", and
with "loading" whenever it says how much of the model is loaded, which it prints.
"""

import os
import signal
import sys
from pathlib import Path

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "rwkvsite.settings"
django.setup()

from inference import engine_process  # noqa: E402
from inference.worker import Worker  # noqa: E402
from sessions.levels import Levels  # noqa: E402


class StoppedLevels(Levels):
    """Closing takes up to eight seconds, in which a signal may come: here it always does."""

    def close(self) -> None:
        super().close()
        signal.raise_signal(signal.SIGTERM)


class StoppedWorker(Worker):
    def set_progress(self, share: float) -> None:
        print("loading", flush=True)
        signal.raise_signal(signal.SIGTERM)
        super().set_progress(share)


if __name__ == "__main__":
    if "closing" in sys.argv:
        sys.modules["sessions.levels"].Levels = StoppedLevels
    if "loading" in sys.argv:
        engine_process.Worker = StoppedWorker
    os.execv = lambda program, arguments: print(*arguments[2:])
    engine_process.main(Path(sys.argv[1]))
