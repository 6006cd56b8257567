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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from inference.engine.library_choice import TUNED_ROWS, Algorithms
from inference.engine.measuring import BETTER, MEASURED_ROWS, Replay, medians, recorded

log = logging.getLogger(__name__)

CLOSE = 1.2  # ways that take up to this many times as long as the best are tried in whole steps

Way = Callable[[int], object]  # computes the product with the weights of one layer


class Choices:
    """`best(kind, rows)` is the name of the fastest way, as far as it was measured."""

    def __init__(self, file: Path, kinds: Mapping[str, Collection[str]]) -> None:
        """`file` keeps what was measured before, by any process that shares it. `kinds`: the ways there are."""
        self._file = file
        kept = json.loads(file.read_text()) if file.exists() else {"ways": {}, "algorithms": {}}
        self._best: dict[str, list[str]] = kept["ways"]
        self._times: dict[str, list[dict[str, float]]] = {}
        self._kinds = kinds
        self.algorithms: Algorithms = kept["algorithms"]

    @property
    def complete(self) -> bool:
        """Everything was measured, for the present ways and MEASURED_ROWS."""
        return (
            self._best.keys() == self._kinds.keys()
            and all(len(best) == len(MEASURED_ROWS) for best in self._best.values())
            and all(set(best) <= set(self._kinds[kind]) for kind, best in self._best.items())
            and all(len(best) == len(TUNED_ROWS) for best in self.algorithms.values())
        )

    def best(self, kind: str, rows: int) -> str:
        return self._best[kind][min(bisect.bisect_left(MEASURED_ROWS, rows), len(MEASURED_ROWS) - 1)]

    def measure(self, kind: str, layers: Sequence[int], ways: Callable[[int], Mapping[str, Way]]) -> None:
        """Time `ways(rows)` for all of MEASURED_ROWS over `layers`, and keep the fastest of each."""
        self._times[kind] = []
        for rows in MEASURED_ROWS:
            times = medians({name: recorded(_over(layers, way)) for name, way in ways(rows).items()})
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
        unfinished.write_text(json.dumps({"ways": self._best, "algorithms": self.algorithms}, indent=1))
        unfinished.replace(self._file)


def _over(layers: Sequence[int], way: Way) -> Callable[[], object]:
    return lambda: [way(layer) for layer in layers]


def is_faster(step: Replay, than: Replay) -> bool:
    times = medians({"step": step, "than": than})
    return times["step"] < BETTER * times["than"]
