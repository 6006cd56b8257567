"""A run that is killed goes on where it was, and answers no document twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Item, Options
from benchmarks.evals.journal import ITEMS, Header, Journal
from benchmarks.evals.summary import SPEEDS
from rwkvsite.env import BASE_DIR
from tests.evals.conftest import read_items
from tests.service import wait_until

SECONDS = 60.0


def start(*arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*before, sys.executable, str(BASE_DIR / "manage.py"), "eval", *arguments]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "rwkvsite.settings"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# No file may grow beyond this, as on a disk that is full.
SMALL_FILES = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500)); "
SMALL_FILES += "os.execv(sys.argv[1], sys.argv[1:])"


def test_a_full_disk_is_one_clear_line(foreign, passages, tmp_path):
    output = tmp_path / "out"
    arguments = ["lambada", "--base-url", foreign.url, "--data", str(passages), "--output", str(output)]
    done = start(*arguments, "--batch", "8", "--concurrency", "1", before=(sys.executable, "-c", SMALL_FILES))
    _, complaint = done.communicate(timeout=SECONDS)
    assert done.returncode == 1
    assert complaint.splitlines()[-1] == f"CommandError: output: {output} cannot be written: File too large"
    summary = json.loads((output / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["n"] < 40 and summary["error"] in complaint

    again = start(*arguments)
    again.communicate(timeout=SECONDS)
    assert again.returncode == 0
    assert read_items(output).keys() == set(range(40))


def lines(output: Path) -> list[bytes]:
    path = output / ITEMS
    return path.read_bytes().splitlines() if path.exists() else []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_at_half_it_goes_on(foreign, passages, tmp_path, how):
    output = tmp_path / "out"
    arguments = ["lambada", "--base-url", foreign.url, "--data", str(passages), "--output", str(output)]
    arguments += ["--batch", "4", "--concurrency", "2"]
    foreign.hold_after = 5  # 20 of 40 documents, and the rest never comes
    first = start(*arguments)
    wait_until(lambda: len(lines(output)) == 21, SECONDS, "half of the documents are answered")
    first.send_signal(how)
    _, complaint = first.communicate(timeout=SECONDS)
    if how == signal.SIGTERM:
        assert first.returncode == 130
        assert "the same command goes on" in complaint
        partial = json.loads((output / "summary.json").read_text())
        assert (partial["status"], partial["n"], partial["documents"]) == ("failed", 20, 40)
    else:
        with (output / ITEMS).open("ab") as file:
            file.write(b'{"doc":39,"correct":tr')  # what a kill in the middle of a line leaves

    foreign.hold_after = None
    second = start(*arguments)
    said, complaint = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, complaint
    assert read_items(output).keys() == set(range(40))
    assert sum(foreign.asked.values()) == len(foreign.asked) == 40
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["status"], summary["n"], summary["resumed"]) == ("completed", 40, 20)
    assert f"acc={summary['acc']:.4f}" in said and f"ppl={summary['ppl']:.4f}" in said


def test_a_finished_run_asks_nothing(foreign, passages, run_eval):
    first, _ = run_eval("lambada", foreign.url, data=passages)
    requests = foreign.requests
    again, _ = run_eval("lambada", foreign.url, data=passages)
    assert foreign.requests == requests
    assert again.figures == first.figures
    assert again.resumed == 40
    assert first.documents_per_second and first.prompt_tokens
    for name in SPEEDS:
        assert getattr(again, name) == getattr(first, name), "what it took is what the first session took"


def test_speeds_that_nobody_knows_any_more(foreign, passages, run_eval, tmp_path):
    run_eval("lambada", foreign.url, data=passages)
    (tmp_path / "out" / "summary.json").unlink()
    again, _ = run_eval("lambada", foreign.url, data=passages)
    assert (again.n, again.documents_per_second, again.prompt_tokens_per_second) == (40, None, None)
    assert "/s" not in again.line()


def test_other_settings_do_not_mix(foreign, passages, run_eval):
    run_eval("lambada", foreign.url, data=passages)
    with pytest.raises(EvalError, match=r"other settings \(prefix 0 -> None\)"):
        run_eval("lambada", foreign.url, data=passages, options=Options(prefix=None))


def test_another_data_type_is_another_run(foreign, passages, run_eval):
    foreign.dtype = "float16"
    run_eval("lambada", foreign.url, data=passages)
    foreign.dtype = "float16, float32 states"
    with pytest.raises(EvalError, match=r"other settings \(dtype 'float16' -> 'float16, float32 states'\)"):
        run_eval("lambada", foreign.url, data=passages)


def test_other_requests_at_one_time_are_no_other_settings(foreign, passages, run_eval):
    run_eval("lambada", foreign.url, data=passages, concurrency=1)
    summary, _ = run_eval("lambada", foreign.url, data=passages, concurrency=4, batch=1)
    assert summary.resumed == 40


def test_a_folder_has_one_run_at_a_time(tmp_path):
    header = Header(settings={})
    with Journal(tmp_path, header), pytest.raises(EvalError, match="another run is writing"):
        Journal(tmp_path, header)


def test_a_document_cannot_be_answered_twice(tmp_path):
    header = Header(settings={})
    with Journal(tmp_path, header) as journal:
        journal.append([Item(doc=1)])
        with pytest.raises(ValueError, match="document 1 was answered twice"):
            journal.append([Item(doc=1)])


@pytest.mark.parametrize("torn", [b"", b'{"sett', b'{"settings":{"eval":"lamb'])
def test_a_run_that_was_killed_before_it_began_begins_again(tmp_path, torn):
    (tmp_path / ITEMS).write_bytes(torn)
    with Journal(tmp_path, Header(settings={})) as journal:
        journal.append([Item(doc=3)])
    assert read_items(tmp_path).keys() == {3}


@pytest.mark.parametrize(
    "content",
    [
        b"no items\n",
        b"not even a line",
        b'no items\nand {"half": "a li',
        b'{"settings": {}, "begun": ""}\n{"doc": 1}\n{"doc": 1}\n',
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_kept(tmp_path, content):
    (tmp_path / ITEMS).write_bytes(content)
    with pytest.raises(EvalError, match="output: "):
        Journal(tmp_path, Header(settings={}))
    assert (tmp_path / ITEMS).read_bytes() == content
