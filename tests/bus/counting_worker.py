"""A worker process on the counting model.

    python -m tests.bus.counting_worker REDIS_URL SLOTS STEP_SECONDS MODEL [OTHER]...

Prints the model that it was told to load instead, one of the OTHER ones.
"""

import signal
import sys
import time

import msgspec

from inference.worker import Worker
from tests.engine.counting_backend import CountingBackend


class SlowCountingBackend(CountingBackend):
    """Takes `seconds` for a step, as a model would, so that a test can interrupt it midway."""

    def __init__(self, slots: int, seconds: float, model: str) -> None:
        super().__init__(slots, overlap=True)
        self.model = msgspec.structs.replace(self.model, id=model)
        self._seconds = seconds

    def launch(self, plan):
        time.sleep(self._seconds)
        return super().launch(plan)


def main() -> None:
    url, slots, seconds, model, *others = sys.argv[1:]
    worker = Worker(url)
    signal.signal(signal.SIGTERM, worker.stop)
    worker.offer(others)
    worker.use(SlowCountingBackend(int(slots), float(seconds), model), step_tokens=64)
    print(worker.run())


if __name__ == "__main__":
    main()
