"""Figures of real exchanges, against the times that their server wrote down."""

import json
import time
from collections import defaultdict
from itertools import pairwise
from statistics import quantiles
from typing import Any

import aiohttp
import pytest

from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.capture import Timeouts, exchange
from benchmarks.loadgen.exchange import Prompt, RequestOptions
from benchmarks.loadgen.metrics import values_of
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import ErrorClass, RequestRecord
from tests.loadgen.mock_server import Script, Step, script_body

TOLERANCE_MS = 2.0
REQUESTS = 15  # a busy machine holds up either process now and then, which only adds to an error


def frame(text: str, total: int | None = None, finish: str | None = None) -> str:
    data: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if total is not None:
        data["usage"] = {"prompt_tokens": 3, "completion_tokens": total}
    return f"data: {json.dumps(data)}\n\n"


async def measure(
    session: aiohttp.ClientSession, url: str, script: Script, *, name: str = "one", intended: float | None = None
) -> RequestRecord:
    backend = BACKENDS["vllm"]
    prompt = Prompt(text="Once")
    body, content_type = backend.encode(backend.body(prompt, RequestOptions(extra_body=script_body(script))))
    headers = {"Content-Type": content_type, "x-request-id": name}
    got = await exchange(session, url + "/v1/completions", headers, body, time.monotonic, Timeouts())
    made = RequestRecord(index=0, intended=intended)
    read_exchange(backend, prompt, got, made)
    return made


SILENT = [
    Step(write=": ping\n\n"),
    Step(wait=0.03, write=frame("a")),
    Step(wait=0.02, write=": ping\n\n"),
    Step(wait=0.02, write=frame("b") + frame("c")),
    Step(wait=0.02, write=frame("", None, "stop") + "data: [DONE]\n\n"),
]
COUNTED = [
    Step(wait=0.03, write=frame("a", 1)),
    Step(wait=0.02, write=frame("bcd", 4)),
    Step(wait=0.04, write=frame("ef", 6), every_byte=True),
    Step(wait=0.01, write=frame("", 7, "length")),
    Step(wait=0.03, write="data: [DONE]\n\n", every_byte=True),
]
CRLF = [Step(wait=step.wait, write=step.write.replace("\n", "\r\n"), every_byte=True) for step in COUNTED]

# Script, the steps that ended a chunk, and the tokens of these chunks.
SCRIPTS = {
    "no usage": (SILENT, [1, 3, 3], [1, 1, 1]),
    "usage in every chunk": (COUNTED, [0, 1, 2], [1, 3, 2]),
    "CRLF, byte by byte": (CRLF, [0, 1, 2], [1, 3, 2]),
}


@pytest.mark.parametrize("kind", SCRIPTS)
async def test_figures_are_the_truth_of_the_server(session: aiohttp.ClientSession, server: str, kind: str) -> None:
    """Each figure within 2 ms in the best tenth of the requests, of the times at which the server wrote, not of those
    at which it meant to.
    """
    steps, chunk_steps, tokens = SCRIPTS[kind]
    await measure(session, server, Script(steps=[Step(write=frame("warm"))]))
    errors: dict[str, list[float]] = defaultdict(list)
    for number in range(REQUESTS):
        name = f"{kind} {number}"
        got = await measure(session, server, Script(steps=steps), name=name, intended=time.monotonic())
        assert got.error is ErrorClass.NONE and got.sent is not None and got.intended is not None
        async with session.get(f"{server}/truth/{name}") as response:
            written = await response.json()
        arrivals = [written[step][0] for step in chunk_steps]
        gaps = [after - before for before, after in pairwise(arrivals)]
        later = sum(tokens[1:]) + (got.output_tokens or 0) - sum(tokens)  # the last one without text
        truth = {
            "ttft": [arrivals[0] - got.sent],
            "ttft_sched": [arrivals[0] - got.intended],
            "tpot": [(arrivals[-1] - arrivals[0]) / later],
            "e2el": [arrivals[-1] - got.sent],
            "icl": gaps,
            "itl": [gap / count for gap, count in zip(gaps, tokens[1:], strict=True) for _ in range(count)],
            "close_time": [written[-1][1] - arrivals[-1]],
        }
        measured = values_of(got)["latency_ms"]
        for figure, values in truth.items():
            pairs = zip(measured[figure], values, strict=True)
            errors[figure] += [abs(value - 1000 * true) for value, true in pairs]
    best = {figure: quantiles(found, n=10)[0] for figure, found in errors.items()}
    assert {figure: error for figure, error in best.items() if error > TOLERANCE_MS} == {}
