"""`manage.py bench multiturn` with what vLLM's script for conversations writes and checks."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from openpyxl import load_workbook

from benchmarks.loadgen import results
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body

FINE = 'data: {"choices": [{"delta": {"content": " fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
ANSWERING = Script(steps=[Step(write=FINE)])
TALKS = [
    {"id": "a", "messages": [("system", "Be kind"), ("user", "one"), ("assistant", "fine"), ("user", "two")]},
    {"id": "b", "messages": [("user", "three"), ("assistant", "fine"), ("user", "four"), ("assistant", "fine")]},
    {"id": "c", "messages": [("user", "five"), ("assistant", "fine")]},
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    return write_talks(tmp_path / "talks.json", TALKS)


def write_talks(path: Path, rows: list[dict[str, Any]]) -> Path:
    said = [
        {"id": row["id"], "messages": [{"role": role, "content": text} for role, text in row["messages"]]}
        for row in rows
    ]
    path.write_text(json.dumps(said))
    return path


def multiturn(url: str, talks: Path, *more: str, script: Script = ANSWERING) -> tuple[str, int]:
    """What it printed, and its exit code."""
    words = ["--tokenizer=none", "--workers=1", f"--url={url}", "-i", str(talks), "--no-store", "--disable-tqdm"]
    stdout, code = io.StringIO(), 0
    try:
        extra = f"--extra-body={json.dumps(script_body(script))}"
        call_command("bench", "multiturn", *words, extra, "-m", "m", *more, stdout=stdout)
    except SystemExit as error:
        code = int(error.code or 0)
    return stdout.getvalue(), code


def test_conversations_are_written_with_their_answers(server: str, talks: Path, tmp_path: Path):
    path, statistics = tmp_path / "out" / "said.json", tmp_path / "stats.json"
    text, code = multiturn(
        server,
        talks,
        *("-p", "2", "-o", str(path), "--stats-json-output", str(statistics), "--print-content", "-e"),
        *("--verify-output", f"--result-dir={tmp_path}", f"--result={tmp_path / 'run.json'}"),
    )
    assert code == 0
    said = {one["id"]: one["messages"] for one in json.loads(path.read_text())}
    answer = {"role": "assistant", "content": " fine"}
    assert said == {
        "a": [
            {"role": "system", "content": "Be kind"},
            {"role": "user", "content": "one"},
            answer,
            {"role": "user", "content": "two"},
            answer,
        ],
        "b": [{"role": "user", "content": "three"}, answer, {"role": "user", "content": "four"}, answer],
        "c": [{"role": "user", "content": "five"}, answer],
    }
    assert "user: three\nassistant:  fine\nuser: four\n" in text
    assert "every answer is the data set's" in text
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:1].isdecimal()}
    assert rows == {"0": "3/3", "1": "2/2"}
    assert len(json.loads(statistics.read_text())) == 5
    run_id = results.load(tmp_path / "run.json").run_id
    assert load_workbook(tmp_path / f"{run_id}-xlsx.xlsx")["Requests"].max_row == 6


def test_another_answer_than_the_data_sets_fails(server: str, tmp_path: Path):
    talks = write_talks(tmp_path / "t.json", [{"id": "x", "messages": [("user", "one"), ("assistant", "bad")]}])
    text, code = multiturn(server, talks, "--verify-output")
    assert code == 1
    assert "conversation x, turn 0: ' fine' is not 'bad'" in text


def test_a_failed_turn_is_tried_again(server: str, tmp_path: Path):
    talks = write_talks(tmp_path / "t.json", TALKS[1:2])
    path = tmp_path / "run.json"
    _, code = multiturn(server, talks, "--max-retries=1", f"--result={path}", script=Script(status=503))
    assert code == 1
    records = results.load(path).records
    assert [(record.index, record.turn, record.http_status) for record in records] == [(0, 0, 503), (1, 0, 503)]


def test_vllms_result_has_a_twin_for_pytorch_on_demand(
    server: str, talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ["--save-result", f"--result-dir={tmp_path}", "-n", "1"]
    multiturn(server, talks, *words, "--result-filename=alone.json")
    monkeypatch.setenv("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", "1")
    multiturn(server, talks, *words, "--result-filename=both.json")
    assert {path.name for path in tmp_path.glob("*.json")} - {talks.name} == {
        *("alone.json", "both.json", "both.pytorch.json")
    }
    records = json.loads((tmp_path / "both.pytorch.json").read_text())
    ttft = next(record["metric"] for record in records if record["metric"]["name"] == "mean_ttft_ms")
    assert ttft["benchmark_values"] == [json.loads((tmp_path / "both.json").read_text())["mean_ttft_ms"]]


def test_requests_are_bounded_and_wait_by_the_rate_of_a_client(
    server: str, talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "run.json"
    multiturn(server, talks, "--max-num-requests=2", "--request-rate=1000", "--max-turns=1", f"--result={path}")
    result = results.load(path)
    assert len(result.records) == 2
    assert result.profile["think_time"] == pytest.approx(0.001)
    assert result.profile["request_rate"] == "inf"
    monkeypatch.setenv("MULTITURN_BENCH_MAX_RETRIES", "2")
    multiturn(server, talks, "-n", "1", "--request-rate=0", f"--result={path}")
    profile = results.load(path).profile
    assert (profile["think_time"], profile["max_retries"]) == (0, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--request-rate=fast"], "--request-rate: 'fast' is no number"),
        (["--request-rate=2", "--think-time=1"], "--request-rate and --think-time say the same"),
        (["--dataset=synthetic_conversations", "--verify-output"], "--verify-output needs conversations of a file"),
        (["--warmup-step"], "use --num-warmups or --warmup-seconds"),
    ],
)
def test_what_cannot_be_used_is_named(talks: Path, words: list[str], message: str):
    with pytest.raises(CommandError, match=message):
        multiturn("http://127.0.0.1:9", talks, *words)
