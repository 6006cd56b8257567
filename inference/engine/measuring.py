"""How ways to compute the same thing are timed against each other on a GPU."""

import statistics
from collections.abc import Callable, Mapping

import torch

# Rows at which ways are compared; another number of rows goes by the next larger of these.
MEASURED_ROWS = (
    *(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 960, 1024),
    *(1536, 2048, 3072, 4096),
)
BETTER = 0.997  # of a time: less than this is no difference
TURNS = 7
TURN_MS = 3.0  # of work in a turn, at least: enough for clocks and caches to settle

Replay = Callable[[], object]


def recorded(run: Callable[[], object]) -> Replay:
    """`run` as a graph, so that launching costs nothing."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def medians(replays: Mapping[str, Replay]) -> dict[str, float]:
    """Milliseconds that each of `replays` takes.

    They take turns: where a GPU is at its power limit, a time depends on what ran before.
    """
    for replay in replays.values():
        replay()
    repeats = {name: max(1, round(TURN_MS / milliseconds(replay))) for name, replay in replays.items()}
    turns = [{name: milliseconds(replay, repeats[name]) for name, replay in replays.items()} for _ in range(TURNS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in replays}


def milliseconds(run: Callable[[], object], repeats: int = 1) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats
