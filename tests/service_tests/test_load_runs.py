"""The load generator with the whole service as its target, as the command line starts it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from benchmarks.loadgen import results
from benchmarks.loadgen.records import RunResult, TokenSource
from benchmarks.models import Run
from tests.service import Service

INPUT_TOKENS, OUTPUT_TOKENS = 24, 12
LENGTHS = [f"--random-input-len={INPUT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}"]


def bench(service: Service, path: Path, *arguments: str, store: bool = False) -> tuple[RunResult, str]:
    """The result that the command wrote, and what it printed."""
    stdout = io.StringIO()
    kept = [] if store else ["--no-store"]
    target = [f"--base-url={service.url}", "--workers=1", "--disable-tqdm", f"--result={path}"]
    call_command("bench", *arguments, *target, *kept, stdout=stdout)
    return results.load(path), stdout.getvalue()


@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("openai", ""), ("openai-chat", ""), ("rwkv", "/v1/chat/completions"), ("rwkv-batch", "/v1/batch/completions")],
)
def test_thirty_requests_at_twenty_a_second(service: Service, tmp_path: Path, backend: str, endpoint: str):
    rate = ["--num-prompts=30", "--request-rate=20", f"--backend={backend}", *LENGTHS]
    result, _ = bench(
        service, tmp_path / "result.json", "serve", *rate, *([f"--endpoint={endpoint}"] if endpoint else [])
    )
    assert result.summary["errors"] == {}
    assert result.summary["requests"]["completed"] == 30
    assert max(record.intended or 0.0 for record in result.records) == pytest.approx(30 / 20)
    assert result.server["model"]
    for record in result.records:
        assert record.sent is not None and record.intended is not None and record.sent >= record.intended
        assert record.output_tokens == OUTPUT_TOKENS
        times = [chunk.time for chunk in record.chunks]
        assert times == sorted(times) and record.sent < times[0] <= times[-1] <= (record.done or 0.0)


def test_prompts_are_as_long_for_the_service_as_for_the_generator(service: Service, tmp_path: Path):
    result, _ = bench(
        service, tmp_path / "result.json", "serve", "--num-prompts=5", *LENGTHS, "--random-range-ratio=0.5"
    )
    assert {record.prompt_tokens_source for record in result.records} == {TokenSource.USAGE}
    said = [record.prompt_tokens or 0 for record in result.records]
    assert len(set(said)) > 1 and all(INPUT_TOKENS / 2 <= tokens <= INPUT_TOKENS * 1.5 for tokens in said)
    assert result.environment["dataset"]["items"] == 5


@pytest.mark.django_db
def test_eight_users_leave_the_same_numbers_on_the_screen_in_the_file_and_in_the_database(
    service: Service, tmp_path: Path
):
    path = tmp_path / "result.json"
    users = ["--num-threads=8", "--num-requests=24", "--ramp-up-time=0.4", *LENGTHS]
    saved = ["--save-result", f"--result-dir={tmp_path}", "--result-filename=vllm.json"]
    result, text = bench(service, path, "clients", *users, *saved, store=True)
    assert [sum(record.user == user for record in result.records) for user in range(8)] == [3] * 8
    assert "24 completed, 0 failed (100.0% succeeded)" in text
    assert f"{24 * INPUT_TOKENS} in, {24 * OUTPUT_TOKENS} out" in text
    figures = result.summary
    shown = [figures["output_throughput"]["full"], figures["latency_ms"]["ttft"]["median"], figures["duration_s"]]
    assert [number for number in shown if f"{number:,.2f}" not in text] == []
    vllm = json.loads((tmp_path / "vllm.json").read_text())
    assert vllm["output_throughput"] == figures["output_throughput"]["full"]
    assert (vllm["completed"], vllm["max_concurrency"]) == (24, 8)
    stored = re.search(r"stored as run (\d+)", text)
    assert stored
    run = Run.objects.get(pk=stored[1])
    assert run.summary == json.loads(json.dumps(figures))
    assert run.records.count() == len(result.records)


@pytest.mark.parametrize("words", [["--stateful"], ["--backend=openai-chat"]], ids=["sessions", "whole history"])
def test_conversations_go_on_where_they_were(service: Service, tmp_path: Path, words: list[str]):
    talk = ["--users=2", "--num-conversations=3", "--num-turns=3", *LENGTHS]
    result, _ = bench(service, tmp_path / "result.json", "multiturn", *talk, *words)
    assert result.summary["errors"] == {}
    turns: dict[str | None, list[Any]] = {}
    for record in sorted(result.records, key=lambda record: record.sent or 0.0):
        turns.setdefault(record.session, []).append(record)
    assert len(turns) == 3
    for records in turns.values():
        assert [record.turn for record in records] == [0, 1, 2]
        tokens = [record.prompt_tokens for record in records]
        if "--stateful" in words:
            assert max(tokens) < 2 * INPUT_TOKENS  # the new turn alone
        else:
            assert tokens[0] < tokens[1] < tokens[2]
