"""A worker process on the counting model: `python -m tests.bus.counting_worker REDIS_URL SLOTS STEP_SECONDS`."""

import signal
import sys
import time

from inference.worker import Worker
from tests.engine.counting_backend import CountingBackend


class SlowCountingBackend(CountingBackend):
    """Takes `seconds` for a step, as a model would, so that a test can interrupt it midway."""

    def __init__(self, slots: int, seconds: float) -> None:
        super().__init__(slots, overlap=True)
        self._seconds = seconds

    def launch(self, plan):
        time.sleep(self._seconds)
        return super().launch(plan)


def main() -> None:
    url, slots, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    worker = Worker(url)
    signal.signal(signal.SIGTERM, worker.stop)
    worker.use(SlowCountingBackend(slots, seconds), step_tokens=64)
    worker.run()


if __name__ == "__main__":
    main()
