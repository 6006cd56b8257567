"""`bench_service` and `soak_service` as a terminal uses them, against the service itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.service import Service


def figures(service: Service, output: Path, *options: str) -> dict[str, Any]:
    call_command("bench_service", f"--base-url={service.url}", "--tokens=8", f"--output={output}", *options)
    return json.loads(output.read_text())


def test_each_case_has_both_throughputs(service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = figures(service, tmp_path / "new" / "figures.json", "--clients=1,3", "--requests-per-client=2")
    assert found["requests_per_client"] == 2
    one, three = found["cases"]
    assert (one["requests"], one["tokens"]) == (2, 16)
    assert (three["requests"], three["tokens"]) == (6, 48)
    assert 0 < one["steady_seconds"] < one["seconds"] and 0 < one["steady_tokens"] < 16
    assert one["steady_tokens_per_second"] == pytest.approx(one["steady_tokens"] / one["steady_seconds"], rel=0.05)
    title, *rows = capsys.readouterr().out.splitlines()[1:4]
    assert "tokens/s, whole" in title and "tokens/s, steady" in title
    for row, case in zip(rows, (one, three), strict=True):
        assert str(case["tokens_per_second"]) in row.split()


def test_a_single_request_has_figures_too(service: Service, tmp_path: Path):
    [case] = figures(service, tmp_path / "figures.json", "--clients=1", "--requests-per-client=1")["cases"]
    assert case["ttft_ms_p99"] == case["ttft_ms_p50"]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("bench_service", ["--clients=1,0"], "--clients: expected a whole number of at least 1, got '0'"),
        ("bench_service", ["--requests-per-client=0"], "--requests-per-client: expected a whole number"),
        ("bench_service", ["--base-url=http://example.org"], "only this machine's services are loaded"),
        ("bench_service", ["--base-url=http://127.0.0.1:9"], "http://127.0.0.1:9: Cannot connect"),
        ("bench_service", ["--output={file}/figures.json"], "--output: .*Not a directory"),
        ("bench_viewers", ["--output={file}/figures.json"], "--output: .*Not a directory"),
        ("soak_service", ["--minutes=0"], "--minutes: expected a number above 0, got '0'"),
        ("soak_service", ["--clients=none"], "--clients: expected a whole number"),
        ("soak_service", ["--output={file}/figures.json"], "--output: .*Not a directory"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(command: str, options: list[str], message: str, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CommandError, match=message):
        call_command(command, *(option.format(file=file) for option in options))
