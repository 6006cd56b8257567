import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from benchmarks.loadgen import exports, figures, imports
from benchmarks.loadgen.exports.ppl_csv import to_row
from benchmarks.loadgen.exports.vllm_json import to_vllm
from benchmarks.loadgen.imports import BadFile
from benchmarks.loadgen.records import ErrorClass, RunResult
from benchmarks.storage import load_result
from tests.loadgen.sample_runs import small_run

SGLANG = {
    "tag": "night",
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": 4.0,
    "max_concurrency": None,
    "random_input_len": 256,
    "server_info": {"model_path": "team/model"},
    "duration": 10.0,
    "completed": 40,
    "total_input_tokens": 10240,
    "total_output_tokens": 5120,
    "request_throughput": 4.0,
    "input_throughput": 1024.0,
    "output_throughput": 512.0,
    "total_throughput": 1536.0,
    "mean_e2e_latency_ms": 900.0,
    "median_e2e_latency_ms": 880.0,
    "p99_e2e_latency_ms": 1200.0,
    "mean_ttft_ms": 80.0,
    "p99_ttft_ms": 150.0,
    "mean_tpot_ms": 6.5,
    "mean_itl_ms": 6.4,
    "p95_itl_ms": 9.0,
    "max_itl_ms": 40.0,
    "concurrency": 3.6,
}
SPREAD = {"mean": 2.0, "median": 1.5, "std_dev": 0.5, "min": 1.0, "max": 4.0, "count": 30, "total_sum": 60.0}
GUIDELLM = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "start_time": 1_763_634_605.0,
            "duration": 30.0,
            "config": {"strategy": {"type_": "constant", "rate": 1.0}},
            "metrics": {
                "request_totals": {"successful": 30, "incomplete": 1, "errored": 2, "total": 33},
                "requests_per_second": {"successful": {"mean": 1.0}},
                "request_concurrency": {"successful": {"mean": 2.5, "max": 4.0}},
                "request_latency": {"successful": {**SPREAD, "percentiles": {"p50": 1.5, "p99": 3.9}}},
                "time_to_first_token_ms": {"successful": {**SPREAD, "percentiles": {"p99": 3.8}}},
                "time_per_output_token_ms": {"successful": SPREAD},
                "inter_token_latency_ms": {"successful": {**SPREAD, "mean": 11.0}},
                "output_token_count": {"successful": SPREAD},
                "output_tokens_per_second": {"successful": {"mean": 64.0}},
            },
        }
    ],
}
AIPERF = {
    "schema_version": "1.3",
    "aiperf_version": "0.9.0",
    "start_time": "2026-11-20T10:30:05",
    "was_cancelled": True,
    "request_latency": {"unit": "s", "avg": 2.5, "p50": 2.4, "p99": 3.5, "count": 20},
    "time_to_first_token": {"unit": "ms", "avg": 90.0, "p99": 140.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0},
    "request_throughput": {"unit": "requests/sec", "avg": 1.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
    "request_count": {"unit": "requests", "avg": 20.0},
    "error_request_count": {"unit": "requests", "avg": 5.0},
    "good_request_fraction": {"unit": "ratio", "avg": 0.9},
    "run_info": {"run_label": "run_0001", "random_seed": 44},
}


def load(folder: Path, content: Any, name: str = "result.json") -> list[RunResult]:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return imports.load(path)


def test_detailed_vllm_comes_back_equal(tmp_path: Path) -> None:
    written = to_vllm(small_run(), detailed=True) | {"rtfx": 3.5}
    [result] = load(tmp_path, written)
    again = to_vllm(result, detailed=True)
    expected = {key: pytest.approx(value) if isinstance(value, float) else value for key, value in written.items()}
    expected["ttfts"] = pytest.approx(written["ttfts"])
    expected["itls"] = [pytest.approx(gaps) for gaps in written["itls"]]
    # What the file does not say: tokens of a chunk, and when a request failed.
    unknown = ("max_output_tokens_per_s", "max_concurrent_requests")
    assert {key: again[key] for key in expected if key not in unknown} == {
        key: value for key, value in expected.items() if key not in unknown
    }
    assert again["request_goodput"] == written["request_goodput"] is not None
    assert (result.records[-1].error, result.summary["requests"]["failed"]) == (ErrorClass.CLIENT_BUG, 1)


def test_summary_of_vllm_comes_back_equal(tmp_path: Path) -> None:
    written = to_vllm(small_run(), detailed=False) | {"rtfx": 3.5}
    [result] = load(tmp_path, written)
    assert to_vllm(result, detailed=False) == written
    assert (result.kind, result.started_at) == ("imported", "2026-11-20T10:30:05+00:00")
    assert result.profile["source"] == {"format": "vllm", "file": "result.json"}
    assert result.profile["metadata"] == {"gpu": "one"}
    assert (result.records, result.health.verdict) == ([], "unknown")


def test_the_itl_of_vllm_is_a_gap_between_chunks(tmp_path: Path) -> None:
    [result] = load(tmp_path, to_vllm(small_run(), detailed=False))
    assert figures.value(result.summary, "icl.mean") == pytest.approx(200)
    assert figures.value(result.summary, "itl.mean") is None


def test_ppl_comes_back_equal(tmp_path: Path) -> None:
    text = exports.export(small_run(), "ppl").decode()
    [result] = load(tmp_path, text, "result.csv")
    assert to_row(result) == {
        name: pytest.approx(float(value)) for name, value in next(csv.DictReader(StringIO(text))).items()
    }
    assert result.summary["requests"] | {"total": 4, "completed": 3, "failed": 1} == result.summary["requests"]
    assert result.duration == pytest.approx(2.3)


def test_our_own_file_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(msgspec.json.encode(small_run()))
    assert imports.load(path) == [small_run()]


def test_our_json_lines_come_back_as_they_were(tmp_path: Path) -> None:
    lines = exports.export(small_run(), "jsonl").decode()
    assert load(tmp_path, lines, "run.jsonl") == [small_run()]
    bare = small_run()
    bare.records = []
    assert load(tmp_path, exports.export(bare, "jsonl").decode(), "bare.jsonl") == [bare]
    both = lines + exports.export(bare, "jsonl").decode() + json.dumps(msgspec.to_builtins(small_run())) + "\n"
    assert load(tmp_path, both, "both.jsonl") == [small_run(), bare, small_run()]


def test_an_answer_may_hold_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    run = small_run()
    run.records[1].text = "one\u2028two\x85three"
    path = tmp_path / "run.jsonl"
    path.write_bytes(exports.export(run, "jsonl"))
    assert imports.load(path) == [run]


def test_sglang_has_a_run_on_each_line(tmp_path: Path) -> None:
    lines = json.dumps(SGLANG) + "\n" + json.dumps(SGLANG | {"completed": 41, "mean_ttft_ms": float("nan")}) + "\n"
    first, second = load(tmp_path, lines, "result.jsonl")
    assert first.run_id != second.run_id
    assert first.server["model"] == "team/model"
    assert first.profile["label"] == "night"
    assert first.summary["latency_ms"]["e2el"] == {"mean": 900.0, "median": 880.0, "p99": 1200.0}
    assert first.summary["latency_ms"]["itl"] == {"mean": 6.4, "p95": 9.0, "max": 40.0}
    assert figures.value(first.summary, "input_throughput") == 1024
    assert first.summary["requests"]["failed"] is None  # it does not say
    assert figures.value(second.summary, "ttft.mean") is None


def test_guidellm_has_a_run_for_each_benchmark(tmp_path: Path) -> None:
    [result] = load(tmp_path, GUIDELLM)
    assert figures.value(result.summary, "e2el.p99") == pytest.approx(3900)  # it counts latencies in seconds
    assert figures.value(result.summary, "tpot.mean") == 11  # which it calls inter token latency
    assert figures.value(result.summary, "output_throughput") == 64
    assert (result.summary["requests"]["failed"], result.summary["success_rate"]) == (3, pytest.approx(30 / 33))
    assert result.summary["tokens"]["output"] == 60
    assert result.profile["request_rate"] == 1.0
    assert result.started_at.startswith("2025-11-20T10:30:05")


def test_aiperf_units_are_those_of_the_file(tmp_path: Path) -> None:
    [result] = load(tmp_path, AIPERF)
    assert figures.value(result.summary, "e2el.p99") == pytest.approx(3500)
    assert figures.value(result.summary, "ttft.p99") == pytest.approx(140)
    assert figures.value(result.summary, "goodput") == pytest.approx(0.9)
    assert (result.cancelled, result.summary["success_rate"]) == (True, 0.8)
    assert result.environment == {"aiperf": "0.9.0"}
    assert result.profile["seed"] == 44


@pytest.mark.parametrize("content", [SGLANG, GUIDELLM, AIPERF])
def test_every_import_can_be_exported_in_every_format(tmp_path: Path, content: dict[str, Any]) -> None:
    [result] = load(tmp_path, content)
    for name in exports.FORMATS:
        assert exports.export(result, name)


def test_the_same_content_is_the_same_run(tmp_path: Path) -> None:
    [first] = load(tmp_path, SGLANG)
    [again] = load(tmp_path, dict(reversed(SGLANG.items())), "other.json")
    [other] = load(tmp_path, SGLANG | {"completed": 39})
    assert first.run_id == again.run_id != other.run_id


VLLM = to_vllm(small_run(), detailed=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SGLANG | {"mean_ttft_ms": "fast"}, "mean_ttft_ms: 'fast' is not a number"),
        ({key: value for key, value in SGLANG.items() if key != "duration"}, "duration: is missing"),
        (VLLM | {"date": "yesterday"}, "date: 'yesterday' is not of the form"),
        (VLLM | {"itls": [[]]}, "itls: has 1 entries, start_times has 4"),
        (VLLM | {"ttfts": ["a", 1, 2, 3]}, "an entry is not a number"),
        (AIPERF | {"time_to_first_token": {"unit": "weeks", "avg": 1}}, "time_to_first_token.unit: 'weeks'"),
        ({"benchmarks": [{"metrics": {"request_totals": 5}}]}, "benchmarks[0].metrics.request_totals: 5 is not an obj"),
        ({"run_id": "x", "kind": "serve", "summary": {}, "records": [{}]}, "missing required field"),
        ({"hello": 1}, "entry 1 is none of the formats"),
        ("[1]", "is not an object"),
        ("{broken", "line 1: is no JSON"),
        ("", "is empty"),
        ("completed,qps,io_tps", "no line below it"),
        ("completed,qps,io_tps\n10,fast,3,surplus", "qps: 'fast' is not a number"),
        pytest.param(f"completed,qps,io_tps\n{'1' * 200_000}", "is no CSV: field larger than", id="cell"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BadFile) as caught:
        load(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "result.json"))
    assert message in str(caught.value)


@pytest.mark.django_db
def test_the_command_keeps_runs_once(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    path.write_text(json.dumps(SGLANG))
    first, again = StringIO(), StringIO()
    call_command("bench", "import", str(path), stdout=first)
    [result] = imports.load(path)
    number = int(first.getvalue().split()[1].rstrip(":"))
    kept = load_result(number)
    assert (kept.run_id, kept.kind, kept.summary) == (result.run_id, "imported", result.summary)
    call_command("bench", "import", str(path), stdout=again)
    assert again.getvalue() == f"run {number}: {result.run_id} was there already\n"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(SGLANG | {"duration": "long"}))
    with pytest.raises(CommandError, match=r"bad\.json: duration: 'long' is not a number") as caught:
        call_command("bench", "import", str(path))
    assert caught.value.returncode == 2
