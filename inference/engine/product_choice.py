"""Which of several ways to compute a product is used for how many rows: measured at start-up, once per GPU.

The ways differ by the GPU, the matrix and the number of rows in a manner nobody has tables for. First
each is timed by itself over the model's own layers, so that no weight is still in the cache when it is
read again. Then whole steps decide between those that were close: what runs before and after a product
changes its time.
"""

import bisect
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

log = logging.getLogger(__name__)

# Rows at which the ways are compared; another number of rows goes by the next larger of these.
MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096)
MEASURED_MS = 8.0  # of work a time is taken from: enough for clocks and caches to settle
LEAST_REPEATS = 5
ROUNDS = 3  # in which two ways are compared, one after the other
CLOSE = 1.2  # ways that take up to this many times as long as the best are tried in whole steps
BETTER = 0.997  # of the step's time: less than this is no difference

Way = Callable[[int], object]  # computes the product with the weights of one layer
Replay = Callable[[], object]


class Choices:
    """`best(kind, rows)` is the name of the fastest way, as far as it was measured."""

    def __init__(self, file: Path) -> None:
        """`file` keeps what was measured before, by any process that shares it."""
        self._file = file
        self._best: dict[str, list[str]] = json.loads(file.read_text()) if file.exists() else {}
        self._times: dict[str, list[dict[str, float]]] = {}

    @property
    def complete(self) -> bool:
        """Everything was measured, for the present MEASURED_ROWS."""
        return bool(self._best) and all(len(best) == len(MEASURED_ROWS) for best in self._best.values())

    def best(self, kind: str, rows: int) -> str:
        return self._best[kind][min(bisect.bisect_left(MEASURED_ROWS, rows), len(MEASURED_ROWS) - 1)]

    def measure(self, kind: str, layers: Sequence[int], ways: Callable[[int], Mapping[str, Way]]) -> None:
        """Time `ways(rows)` for all of MEASURED_ROWS over `layers`, and keep the fastest of each."""
        self._times[kind] = []
        for rows in MEASURED_ROWS:
            times = {name: milliseconds(recorded(_over(layers, way))) for name, way in ways(rows).items()}
            self._times[kind].append(times)
            log.debug("%s at %d rows: %s", kind, rows, {name: f"{ms:.3f} ms" for name, ms in times.items()})
        self._best[kind] = [min(times, key=lambda name: times[name]) for times in self._times[kind]]

    def refine(self, record: Callable[[int], Replay], most_rows: int) -> None:
        """Try close ways in whole steps; `record(rows)` records one by the present choices."""
        for place, rows in enumerate(MEASURED_ROWS):
            if rows > most_rows:
                return
            fastest = record(rows)
            for kind, measured in self._times.items():
                times, chosen = measured[place], self._best[kind][place]
                for name in [name for name in times if name != chosen and times[name] < CLOSE * times[chosen]]:
                    self._best[kind][place] = name
                    step = record(rows)
                    if is_faster(step, fastest):
                        log.debug("%d rows: %s by %s is faster in a whole step than by %s", rows, kind, name, chosen)
                        fastest, chosen = step, name
                self._best[kind][place] = chosen

    def save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_suffix(f".{os.getpid()}.partial")
        unfinished.write_text(json.dumps(self._best, indent=1))
        unfinished.replace(self._file)


def _over(layers: Sequence[int], way: Way) -> Callable[[], object]:
    return lambda: [way(layer) for layer in layers]


def recorded(run: Callable[[], object]) -> Replay:
    """`run` as a graph, so that launching costs nothing."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(replay: Replay) -> float:
    """The best of several times, after a warm-up as long as these."""
    replay()
    times = [_once(replay)]
    repeats = max(LEAST_REPEATS, int(MEASURED_MS / times[0]))
    for _ in range(repeats):
        replay()
    return min(_once(replay) for _ in range(repeats))


def is_faster(step: Replay, than: Replay) -> bool:
    """In every one of several rounds: a single comparison is at the mercy of clocks that move."""
    return all(milliseconds(step) < BETTER * milliseconds(than) for _ in range(ROUNDS))


def _once(replay: Replay) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
