import os
import pty
import subprocess
import sys

from benchmarks.evals.progress import Progress
from rwkvsite.env import BASE_DIR

SECONDS = 60.0


def test_elsewhere_there_are_few_lines():
    texts: list[str] = []
    progress = Progress("lambada", texts.append, terminal=False)
    for done in range(1001):
        progress(done, 1000)
    progress.close()
    assert "".join(texts).splitlines() == ["lambada 0/1000", "lambada 1000/1000"]


def in_a_terminal(*arguments: str) -> str:
    """What the command shows on a terminal, with the ends of lines as the terminal gets them."""
    ours, its = pty.openpty()
    command = [sys.executable, str(BASE_DIR / "manage.py"), "eval", *arguments]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "rwkvsite.settings"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=its)
    os.close(its)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    finally:
        os.close(ours)
        process.wait(SECONDS)
    return shown.decode()


def test_a_terminal_gets_a_bar_that_stays_on_its_line(foreign, passages, tmp_path):
    arguments = ["--base-url", foreign.url, "--data", str(passages), "--output", str(tmp_path / "out")]
    shown = in_a_terminal("lambada", *arguments, "--batch", "1")
    before, first, *_, last = shown.split("\r[")
    assert before == ""
    assert first.startswith(f"{'.' * 30}] lambada 0/40")
    assert last == f"{'#' * 30}] lambada 40/40\x1b[K\r\n"
    assert shown.count("\n") == 1


def test_an_error_begins_behind_the_bar(foreign, passages, tmp_path):
    foreign.with_logprobs = False
    arguments = ["--base-url", foreign.url, "--data", str(passages), "--output", str(tmp_path / "out")]
    shown = in_a_terminal("lambada", *arguments)
    bar, error, rest = shown.split("\r\n")
    assert bar.startswith("\r[....") and "\n" not in bar
    assert "CommandError: the server gives no logprobs" in error
    assert rest == ""
