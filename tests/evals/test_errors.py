"""What can go wrong ends a run with one clear line, and what was answered until then is kept."""

import asyncio
import json
import socket
from io import StringIO

import pytest
from aiohttp import web
from django.core.management import CommandError, call_command

from benchmarks.evals import client
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Options
from benchmarks.evals.fetch import fetch
from benchmarks.evals.runner import Plan, run
from benchmarks.evals.target import check_target
from tests.evals.conftest import read_items
from tests.evals.foreign import running_foreign
from tests.service import free_port


@pytest.fixture
def impatient(monkeypatch):
    """Clients that do not wait between their tries."""
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has no documents"),
        (b'{"text": "one two"}\n{"text": 5}\n', r"line 2: Expected `str`, got `int` - at `\$.text`"),
        (b'{"text": "one two"}\nhello\n', "line 2 is not JSON"),
        (b'{"text": "oneword"}\n', "line 1: text: expected a passage"),
        (b'\xff\xfe{"text": "one two"}\n', "is not UTF-8"),
    ],
)
def test_a_wrong_file(foreign, run_eval, tmp_path, content, message):
    data = tmp_path / "data.jsonl"
    if content is not None:
        data.write_bytes(content)
    with pytest.raises(EvalError, match=f"^data: .*{message}"):
        run_eval("lambada", foreign.url, data=data)
    assert foreign.requests == 0


def test_a_wrong_checksum(foreign, run_eval, passages):
    with pytest.raises(EvalError, match=r"has the SHA-256 [0-9a-f]{64}, not 0{64}"):
        run_eval("lambada", foreign.url, data=passages, sha256="0" * 64)
    assert foreign.requests == 0


def test_a_server_without_logprobs(foreign, run_eval, passages, tmp_path):
    foreign.with_logprobs = False
    with pytest.raises(EvalError, match="no logprobs with echo; `eval lambada --procedure greedy`"):
        run_eval("lambada", foreign.url, data=passages)
    greedy = Options(procedure="greedy")
    summary, _ = run_eval("lambada", foreign.url, data=passages, options=greedy, output=tmp_path / "greedy")
    assert summary.figures["acc"] == 0


def test_a_server_that_ignores_echo(foreign, run_eval, passages):
    def only_the_new_token(body):
        logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}
        choices = [{"index": place, "text": "a", "logprobs": logprobs} for place, _ in enumerate(body["prompt"])]
        return web.json_response({"choices": choices})

    foreign.behave = only_the_new_token
    with pytest.raises(EvalError, match="fewer tokens than the prompt has"):
        run_eval("lambada", foreign.url, data=passages)


def test_a_server_that_fails(foreign, run_eval, passages, tmp_path, impatient):
    foreign.behave = lambda body: web.Response(status=500, text="gone") if foreign.requests > 3 else None
    with pytest.raises(EvalError, match=r"HTTP 500: gone \(4 tries\)"):
        run_eval("lambada", foreign.url, data=passages, batch=5, concurrency=1)
    assert len(read_items(tmp_path / "out")) == 15
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["n"]) == ("failed", 15)
    assert "gone" in summary["error"]
    assert 0 < summary["acc"] < 1 and summary["ppl"] > 1

    foreign.behave = lambda body: None
    again, _ = run_eval("lambada", foreign.url, data=passages, batch=5)
    assert (again.status, again.n, again.resumed) == ("completed", 40, 15)


def test_a_server_that_dies(run_eval, passages, tmp_path, impatient):
    with running_foreign() as dying:
        dying.behave = lambda body: dying.die() if dying.requests > 3 else None
        with pytest.raises(EvalError, match="the connection was lost: "):
            run_eval("lambada", dying.url, data=passages, batch=5, concurrency=1)
    assert len(read_items(tmp_path / "out")) == 15
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["status"], summary["n"]) == ("failed", 15)


def test_nobody_listens(run_eval, passages, impatient):
    with pytest.raises(EvalError, match="the connection was lost: Cannot connect"):
        run_eval("lambada", f"http://127.0.0.1:{free_port()}", data=passages)


def test_a_host_that_does_not_accept_connections(run_eval, passages, impatient, monkeypatch):
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises(EvalError, match=r"/v1/models: no connection within 0.05 s \(4 tries\)"):
            run_eval("lambada", url, data=passages)


def test_an_answer_of_several_lines_is_one_line_of_error(foreign, run_eval, passages, tmp_path):
    foreign.behave = lambda body: web.Response(status=400, text="{\n  one\r\n\n  two\n}\n")
    with pytest.raises(EvalError) as raised:
        run_eval("lambada", foreign.url, data=passages)
    assert str(raised.value).endswith("/v1/completions: HTTP 400: { one two }")


def test_an_exception_that_nobody_expected_is_in_the_summary(foreign, run_eval, passages, tmp_path):
    def report(done, total):
        if done:
            raise ZeroDivisionError("a mistake")

    plan = Plan(eval="lambada", base_url=foreign.url, output=tmp_path, data=passages, concurrency=1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run(plan, report=report))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["error"], summary["n"]) == ("failed", "ZeroDivisionError: a mistake", 16)


def test_candidates_that_are_empty_are_no_right_answers(foreign, run_eval, passages):
    def without_candidates(body):
        logprobs = {"token_logprobs": [None, *[-1.0] * 300], "top_logprobs": [{}] * 301}
        choices = [{"index": place, "text": "", "logprobs": logprobs} for place, _ in enumerate(body["prompt"])]
        return web.json_response({"choices": choices})

    foreign.behave = without_candidates
    with pytest.raises(EvalError, match="no logprobs of the prompt's tokens"):
        run_eval("lambada", foreign.url, data=passages)


def test_a_busy_server_is_asked_again(foreign, run_eval, passages, impatient):
    def refuse_every_other(body):
        return web.Response(status=429, headers={"Retry-After": "0"}) if foreign.requests % 2 else None

    foreign.behave = refuse_every_other
    summary, items = run_eval("lambada", foreign.url, data=passages, concurrency=1, batch=10)
    assert summary.n == len(items) == 40
    assert foreign.requests == 8


def test_a_server_that_stays_busy_is_given_up(foreign, run_eval, passages, impatient, monkeypatch):
    monkeypatch.setattr(client, "BUSY_SECONDS", 0.01)
    foreign.behave = lambda body: web.Response(status=503, text="loading")
    with pytest.raises(EvalError, match=r"is busy for .*: HTTP 503: loading"):
        run_eval("lambada", foreign.url, data=passages)


def test_a_redirect_is_not_followed(foreign, run_eval, passages):
    foreign.behave = lambda body: web.Response(status=307, headers={"Location": "http://example.org/"})
    with pytest.raises(EvalError, match="HTTP 307"):
        run_eval("lambada", foreign.url, data=passages)


def test_a_model_that_is_not_loaded(foreign, run_eval, passages):
    with pytest.raises(EvalError, match=r"model: 'other' is not loaded at .*, which has foreign"):
        run_eval("lambada", foreign.url, data=passages, model="other")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://localhost", "not an http or https URL"),
        ("http://", "not an http or https URL"),
        ("http://me:secret@localhost", "a password does not belong in it"),
        ("http://192.0.2.1:8000", "192.0.2.1 is not this machine; allow it with --allow-host 192.0.2.1"),
        ("http://localhost.example.org", "is not this machine"),
    ],
)
def test_targets_that_are_refused(url, message):
    with pytest.raises(EvalError, match=f"^base-url: .*{message}"):
        check_target(url)


def test_targets_that_are_allowed():
    assert check_target("http://localhost:8000/v1/") == "http://localhost:8000"
    assert check_target("http://[::1]:8000") == "http://[::1]:8000"
    assert check_target("https://example.org/v1", ["example.org"]) == "https://example.org"


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(foreign, passages, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "hush")
    arguments = ["lambada", "--base-url", foreign.url, "--data", str(passages), "--output", str(tmp_path / "out")]
    call_command("eval", *arguments, "--api-key-env", "SOME_API_KEY", stdout=StringIO(), stderr=StringIO())
    assert {headers["Authorization"] for headers in foreign.headers} == {"Bearer hush"}
    assert not any("hush" in path.read_text() for path in (tmp_path / "out").iterdir())


def test_without_a_key_a_foreign_server_gets_none(foreign, passages, run_eval):
    run_eval("lambada", foreign.url, data=passages)
    assert not any("Authorization" in headers for headers in foreign.headers)


def test_the_command_says_what_is_wrong(foreign, tmp_path):
    with pytest.raises(CommandError, match=r"^data: .*missing.jsonl cannot be read: No such file"):
        call_command("eval", "lambada", "--base-url", foreign.url, "--data", str(tmp_path / "missing.jsonl"))


def test_fetching_what_is_there_only_checks_it(passages):
    checksum = fetch("owner/data", "passages.jsonl", passages)
    assert fetch("owner/data", "passages.jsonl", passages, expected=checksum.upper()) == checksum
    with pytest.raises(EvalError, match="has the SHA-256"):
        fetch("owner/data", "passages.jsonl", passages, expected="1" * 64)


def test_public_data_has_a_known_checksum(foreign, run_eval, passages):
    known = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
    with pytest.raises(EvalError, match=f"has the SHA-256 .*, not {known}"):
        fetch("owner/data", "passages.jsonl", passages, expected="lambada-openai")
    with pytest.raises(EvalError, match=f"has the SHA-256 .*, not {known}"):
        run_eval("lambada", foreign.url, data=passages, sha256="lambada-openai")
    with pytest.raises(EvalError, match="'lambada' is neither 64 hexadecimal digits nor one of lambada-openai"):
        run_eval("lambada", foreign.url, data=passages, sha256="lambada")


def test_fetching_to_where_nothing_can_be_written(passages, tmp_path, monkeypatch):
    """The hub's own files may be there while the target is not to be written."""
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *args, **options: str(passages))
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "test.jsonl"
    with pytest.raises(EvalError, match=f"^output: {target} cannot be written: "):
        fetch("owner/data", "test.jsonl", target)


def test_fetching_without_a_connection_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    target = tmp_path / "test.jsonl"
    with pytest.raises(EvalError, match=f"copy the file from another machine to {target}"):
        fetch("owner/data", "test.jsonl", target)
    assert not target.exists()
