"""`manage.py bench serve|clients|multiturn|sweep|cost` as a terminal and as another program use it."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from benchmarks import commands
from benchmarks.loadgen import compare, results, runner
from benchmarks.loadgen.options import checked_profile
from benchmarks.models import Run, Status
from rwkvsite.env import BASE_DIR
from tests.loadgen.mock_server import Script, Step, running_mock_server, script_body, written
from tests.service import descendants, is_running, wait_until

ANSWER = 'data: {"choices": [{"text": "a"}]}\n\n'
END = 'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
QUICK = Script(steps=[Step(write=ANSWER), Step(write=ANSWER + END)])
ENDLESS = Script(steps=[Step(write=ANSWER), Step(wait=600, write=END)])
SMALL = ["--tokenizer=none", "--random-input-len=4", "--random-output-len=2", "--workers=1"]
SECONDS = 60.0  # the longest wait for something that takes a moment on an idle machine


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_mock_server() as url:
        yield url


def words(url: str, script: Script = QUICK, *, store: bool = False) -> list[str]:
    kept = [] if store else ["--no-store"]
    return [*SMALL, f"--base-url={url}", f"--extra-body={json.dumps(script_body(script))}", *kept]


def bench(*arguments: str) -> str:
    stdout = io.StringIO()
    call_command("bench", *arguments, stdout=stdout)
    return stdout.getvalue()


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(BASE_DIR / "manage.py"), "bench", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed_rows(text: str) -> dict[str, list[str]]:
    """The cells behind each title of a table."""
    rows = {}
    for line in text.splitlines():
        title, *cells = re.split(r"\s{2,}", line.strip())
        rows[title] = cells
    return rows


def test_the_printed_figures_are_those_of_the_files(server: str, tmp_path: Path):
    path = tmp_path / "result.json"
    more = ["--num-prompts=30", "--request-rate=100", "--save-detailed", "--save-result", f"--result-dir={tmp_path}"]
    text = bench("serve", *words(server), *more, f"--result={path}", "--result-filename=vllm.json", "--label=mine")
    result, vllm = results.load(path), json.loads((tmp_path / "vllm.json").read_text())
    rows = printed_rows(text)
    assert "30 completed, 0 failed" in text
    ttft = result.summary["latency_ms"]["ttft"]
    assert rows["ttft"][:3] == [f"{ttft[name]:,.2f}" for name in ("mean", "median", "std")]
    whole_run = result.summary["request_throughput"]["full"]
    assert f"{whole_run:,.2f}" in text
    assert vllm["completed"] == 30 and vllm["label"] == "mine"
    assert vllm["request_throughput"] == whole_run
    assert vllm["median_ttft_ms"] == pytest.approx(ttft["median"])
    assert vllm["generated_texts"] == ["aa"] * 30


def test_results_can_be_appended_to_one_file(server: str, tmp_path: Path):
    for _ in range(2):
        more = ["-n", "2", "--append-result", f"--result-dir={tmp_path}", "--result-filename=all.jsonl"]
        bench("serve", *words(server), *more, "--disable-tqdm")
    assert [json.loads(line)["completed"] for line in (tmp_path / "all.jsonl").read_text().splitlines()] == [2, 2]


def test_another_program_reads_progress_and_the_results_place(server: str, tmp_path: Path):
    path = tmp_path / "result.json"
    more = ["--num-threads=2", "--num-requests=6", "--ramp-up-time=0", "--progress-json"]
    lines = [
        json.loads(line)
        for line in bench("clients", *words(server), *more, f"--result={path}", "--run-id=abc").splitlines()
    ]
    *progress, last = lines
    assert {line["event"] for line in progress} == {"progress"}
    counts = {"elapsed", "sent", "done", "failed", "in_flight", "output_tokens", "ttft_p50_ms"}
    assert all(counts <= line.keys() for line in progress)
    assert last == {"event": "result", "path": str(path), "run_id": "abc"}
    assert results.load(path).run_id == "abc" and results.load(path).kind == "clients"


def test_options_come_from_a_file_too(server: str, tmp_path: Path):
    config, path = tmp_path / "config.json", tmp_path / "result.json"
    config.write_text(json.dumps({"num_prompts": 3, "label": "configured", "seed": 4}))
    bench("serve", *words(server), f"--config={config}", "--seed=5", f"--result={path}")
    profile = results.load(path).profile
    assert (profile["num_prompts"], profile["label"], profile["seed"]) == (3, "configured", 5)
    config.write_text('{"speed": 1}')
    with pytest.raises(CommandError, match="--config: 'speed' is not an option"):
        bench("serve", *words(server), f"--config={config}")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--request-rate=fast"], "--request-rate: expected `float`"),
        (["serve", "--users=3"], "--users belongs to `bench clients`"),
        (["serve", "--base-url=http://example.org"], "example.org is not this machine"),
        (["sweep", "--request-rate=3"], "--request-rate cannot be given beside --axis request_rate"),
        (["sweep", "--axis=users", "--values", "1.5"], "--values: --axis users counts"),
        (["sweep", "--values", "1", "--run-id=a"], "--run-id names a single run"),
    ],
)
def test_what_cannot_be_used_is_an_error_of_its_own(arguments: list[str], message: str):
    with pytest.raises(CommandError) as refused:
        bench(*arguments)
    assert message in str(refused.value)
    assert refused.value.returncode == 2


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("serve", "--result"),
        ("clients", "--result"),
        ("multiturn", "--output-file"),
        ("multiturn", "--stats-json-output"),
        ("sweep", "--sweep-result"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_load(command: str, option: str, tmp_path: Path):
    """Nothing listens on port 9: a load would fail, and not be refused."""
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "result.json"):
        with pytest.raises(CommandError, match=rf"^{option}: .*(Is|Not) a directory") as refused:
            bench(command, *words("http://127.0.0.1:9"), f"{option}={path}")
        assert refused.value.returncode == 2


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_load(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match=r"^--result-dir: .*Not a directory"):
        bench("serve", *words("http://127.0.0.1:9"), "--save-result", f"--result-dir={tmp_path / 'file'}")


@pytest.mark.django_db
def test_a_database_without_the_tables_is_refused_before_the_load():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE benchmarks_run RENAME TO elsewhere")  # undone with the test's transaction
    with pytest.raises(CommandError, match=r"^--no-store was not given, and the database cannot be used"):
        bench("serve", *words("http://127.0.0.1:9", store=True))


def test_the_help_says_what_each_subcommand_does(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        call_command("bench", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {words}" in shown for name, words in commands.COMMANDS.items())


def test_a_load_without_an_answer_fails(server: str):
    with pytest.raises(SystemExit) as failed:
        bench("serve", *words(server, Script(status=503)), "-n", "2")
    assert failed.value.code == 1


def test_an_interrupt_ends_the_load_with_what_there_was(server: str, tmp_path: Path):
    path = tmp_path / "result.json"
    options = ["-n", "3", "--request-id-prefix=cut-", "--progress-json", f"--result={path}"]
    process = started("serve", *words(server, ENDLESS), *options)
    wait_until(lambda: all(written(server, f"cut-{number}") for number in range(3)), SECONDS, "all are being answered")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (130, "")
    result = results.load(path)
    assert result.cancelled and len(result.records) == 3
    assert all(len(record.chunks) == 1 for record in result.records)


def test_workers_end_when_the_command_is_killed(server: str):
    process = started("serve", *words(server, ENDLESS), "-n", "2", "--progress-json")
    wait_until(lambda: descendants(process.pid), SECONDS, "its worker runs")
    found = descendants(process.pid)
    process.kill()
    process.communicate(timeout=SECONDS)
    wait_until(lambda: not any(map(is_running, found)), SECONDS, "its worker is gone")


@pytest.mark.django_db
def test_a_run_is_as_it_ended(server: str):
    def stored(text: str) -> Run:
        found = re.search(r"stored as run (\d+)", text)
        assert found
        return Run.objects.get(pk=found[1])

    shown = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("bench", "serve", *words(server, Script(status=503), store=True), "-n", "2", stdout=shown)
    failed = stored(shown.getvalue())
    assert failed.status == Status.FAILED
    assert failed.error.startswith("the last 2 requests failed, most with http_5xx: HTTP 503")
    assert "the run failed: the last 2 requests failed" in shown.getvalue()

    slow = Script(steps=[Step(wait=0.5, write=ANSWER + END)])
    given_up = ["--cancel-fraction=0.7", "--cancel-after=0", "--seed=0"]  # all but the first and the sixth
    more = ["--num-prompts=12", "--request-rate=50", "--burstiness=inf"]
    done = stored(bench("serve", *words(server, slow, store=True), *more, *given_up))
    ends = list(done.records.order_by("sent").values_list("error", flat=True))
    assert ends[-5:] == ["cancelled"] * 5, "its last requests were given up"
    assert (done.status, done.error) == (Status.DONE, "")


@pytest.mark.django_db
def test_a_sweep_measures_every_value_and_keeps_its_runs_apart(server: str, tmp_path: Path, admin_client: Client):
    path = tmp_path / "sweep.json"
    values = ["--axis=max_concurrency", "--values", "1", "2", "--repeats=2", "-n", "6", f"--sweep-result={path}"]
    files = [f"--result={tmp_path / 'run.json'}", "--save-result", f"--result-dir={tmp_path}"]
    more = ["--result-filename=vllm.json", "--label=mine", "--disable-tqdm"]
    text = bench("sweep", *words(server, store=True), *values, *files, *more)

    points = json.loads(path.read_text())["points"]
    assert [point["value"] for point in points] == [1, 1, 2, 2]
    runs = {name: results.load(tmp_path / f"run-{name}.json") for name in ("1-1", "1-2", "2-1", "2-2")}
    assert {run.run_id for run in runs.values()} == {point["run_id"] for point in points}
    for name, run in runs.items():
        value = int(name[0])
        [point] = [one for one in points if one["run_id"] == run.run_id]
        assert run.profile["max_concurrency"] == point["value"] == value
        assert run.profile["label"] == f"mine max_concurrency={value}"
        assert f"{point['request_throughput']:,.2f}" in text
        vllm = json.loads((tmp_path / f"vllm-{name}.json").read_text())
        assert (vllm["label"], vllm["max_concurrency"]) == (run.profile["label"], value)
    assert [len(group.results) for group in compare.group(list(runs.values()))] == [2, 2]

    sent = [run.environment["dataset"]["sha256"] for run in runs.values()]
    assert len(set(sent)) == 4, "a server that keeps what it was sent must not be asked the same again"
    assert {run.profile["seed"] for run in runs.values()} == {0}
    again = runner.run(checked_profile(runs["2-2"].profile), kind="serve")
    assert again.environment["dataset"]["sha256"] == sent[3], "and the profile tells how to"

    stored = Run.objects.order_by("sweep_value", "repeat")
    assert [(run.sweep_value, run.repeat) for run in stored] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    [series] = {run.series for run in stored}
    assert f"stored as the sweep {series}" in text
    assert all(run.status == Status.DONE and run.is_of_sweep for run in stored)
    page = admin_client.get(reverse("admin:benchmarks_run_sweep", args=[series]))
    assert page.context["option"] == "max_concurrency"
    assert [reverse("admin:benchmarks_run_change", args=[run.pk]) in page.content.decode() for run in stored] == [
        True
    ] * 4


def test_a_sweep_that_looks_for_its_range_asks_nothing_twice(server: str, tmp_path: Path):
    every = ["--axis=max_concurrency", "--points=2", "-n", "4", f"--result={tmp_path / 'run.json'}", "--disable-tqdm"]
    bench("sweep", *words(server), *every)
    runs = [results.load(path) for path in tmp_path.glob("run-*.json")]
    assert {path.stem for path in tmp_path.glob("run-range-*")} == {
        "run-range-max_concurrency-1",
        "run-range-request_rate-inf",
    }
    assert len(runs) == 4
    assert len({run.environment["dataset"]["sha256"] for run in runs}) == 4
    assert len({run.profile["label"] for run in runs}) == 4


def test_conversations_repeat_what_was_said(server: str, tmp_path: Path):
    spoken = 'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    path = tmp_path / "result.json"
    conversations = ["--users=2", "--num-conversations=3", "--num-turns=3", f"--result={path}"]
    bench("multiturn", *words(server, Script(steps=[Step(write=spoken)])), *conversations)
    records = results.load(path).records
    assert sorted(record.turn for record in records) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    sessions: dict[str, list[Any]] = {}
    for record in sorted(records, key=lambda record: record.sent or 0.0):
        sessions.setdefault(record.session or "", []).append(record)
    assert len(sessions) == 3
    for turns in sessions.values():
        assert [record.turn for record in turns] == [0, 1, 2]
        lengths = [record.prompt_tokens for record in turns]
        assert lengths[0] < lengths[1] < lengths[2]


def test_the_cost_of_the_generator_is_printed_and_written(tmp_path: Path):
    path = tmp_path / "cost.json"
    text = bench("cost", "--streams", "4", "--seconds=0.5", f"--output={path}")
    case = json.loads(path.read_text())["cases"][0]
    assert case["streams"] == 4 and case["events"] > 0
    assert f"{case['added_latency_ms']['median']:,.2f}" in text
