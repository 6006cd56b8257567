import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rwkvsite.env import BASE_DIR
from tests.service import is_running, wait_until


class Supervised:
    def __init__(self, folder, kind: str) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.site.supervised", kind], cwd=BASE_DIR, stdout=log, stderr=log
            )

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def pids(self, name: str) -> list[int]:
        return [int(line.split()[-1]) for line in self.lines if re.match(rf"{name} *\| pid", line)]

    def wait_until_started(self) -> None:
        wait_until(lambda: self.pids("first") and self.pids("second"), 20, "both children run")


@pytest.fixture
def start(tmp_path) -> Iterator:
    started = []

    def start(kind: str = "plain") -> Supervised:
        started.append(Supervised(tmp_path, kind))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.wait()


def test_a_dead_child_is_started_again(start):
    supervised = start()
    supervised.wait_until_started()
    os.kill(supervised.pids("first")[0], signal.SIGKILL)
    wait_until(lambda: len(supervised.pids("first")) == 2, 10, "the child is back")
    assert any("first ended by SIGKILL; starting it again in 0.5 s" in line for line in supervised.lines)
    assert len(supervised.pids("second")) == 1


def test_a_child_that_keeps_dying_is_given_longer_pauses(start):
    supervised = start()
    supervised.wait_until_started()
    for count in (1, 2):
        os.kill(supervised.pids("first")[-1], signal.SIGKILL)
        wait_until(lambda count=count: len(supervised.pids("first")) == count + 1, 10, "the child is back")
    pauses = [line.split(" in ")[1] for line in supervised.lines if "starting it again" in line]
    assert pauses == ["0.5 s", "1 s"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_children_in_the_opposite_order(start, number):
    supervised = start()
    supervised.wait_until_started()
    supervised.process.send_signal(number)
    assert supervised.process.wait(20) == 0
    assert [line.split()[0] for line in supervised.lines if line.endswith("| ended")] == ["second", "first"]
    assert not any(is_running(pid) for pid in supervised.pids("first") + supervised.pids("second"))


def test_a_second_signal_does_not_wait_for_a_stubborn_child(start):
    supervised = start("stubborn")
    supervised.wait_until_started()
    supervised.process.terminate()
    wait_until(lambda: any("stopping" in line for line in supervised.lines), 10, "the first signal has arrived")
    assert is_running(supervised.pids("second")[0])
    supervised.process.terminate()
    assert supervised.process.wait(20) == 0
    assert not is_running(supervised.pids("second")[0])


def test_a_child_that_says_its_configuration_is_wrong_ends_everything(start):
    supervised = start("misconfigured")
    assert supervised.process.wait(20) == os.EX_CONFIG
    assert not any(is_running(pid) for pid in supervised.pids("first") + supervised.pids("second"))


def test_children_die_with_a_supervisor_that_is_killed(start):
    supervised = start("stubborn")
    supervised.wait_until_started()
    children = supervised.pids("first") + supervised.pids("second")
    supervised.process.kill()
    wait_until(lambda: not any(map(is_running, children)), 10, "no child is left")


@pytest.mark.parametrize("kind", ["talking", "talking-unprefixed"])
def test_a_full_disk_below_the_log_ends_neither_restarts_nor_reading(tmp_path, kind):
    pids = tmp_path / "pids"
    pids.touch()
    command = [sys.executable, "-m", "tests.site.supervised", kind, str(pids)]
    with open("/dev/full", "wb") as full, subprocess.Popen(command, cwd=BASE_DIR, stdout=full, stderr=full) as process:
        try:
            wait_until(pids.read_text, 20, "all that the child says was read")
            os.kill(int(pids.read_text()), signal.SIGKILL)
            wait_until(lambda: len(pids.read_text().splitlines()) == 2, 20, "the child is back")
        finally:
            process.kill()
