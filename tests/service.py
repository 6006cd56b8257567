"""A real `manage.py serve` for tests, with everything it writes in a folder of its own."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inference.supervisor import TETHER
from rwkvsite.env import BASE_DIR, redis_socket

START_SECONDS = 90.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll until `condition` holds. Raises TimeoutError, which says `what` was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain until {what}")
        time.sleep(POLL_SECONDS)


_ports = itertools.count(10_000 + 4_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + os.getpid() % 1000)


def free_port() -> int:
    """One below those that a kernel gives to whoever asks for any: nobody takes it before it is used."""
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a count does not end")


def descendants(pid: int) -> set[int]:
    """The ids of all processes below `pid`, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):  # it ended just now
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level} - found:
        found |= level
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Service:
    """`url`, `redis_url`, `process` (serve itself) and `output` (everything that was printed).

    Without Celery, whose processes take longest to start, unless SERVE_CELERY is "true".
    """

    def __init__(self, var_dir: Path, **environment: str) -> None:
        self.port = free_port()
        self.var_dir = var_dir
        self.url = f"http://127.0.0.1:{self.port}"
        self.redis_url = f"unix://{redis_socket(var_dir)}"
        self._log = var_dir / "serve.log"
        own = {"VAR_DIR": str(var_dir), "PORT": str(self.port), "REDIS_URL": "", "OMP_NUM_THREADS": "1"}
        own["SERVE_CELERY"] = "false"
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", **own, **environment}
        # Tethered, so that nothing is left when the test run itself is killed.
        command = [sys.executable, str(TETHER), str(os.getpid()), sys.executable, str(BASE_DIR / "manage.py"), "serve"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def child(self, name: str) -> int | None:
        """The id of the process below serve that has `name` among its words, if there is one."""
        for pid in descendants(self.process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):  # it ended just now
                continue
            if name.encode() in words and b"-I" not in words:  # -I: still on its way to the command itself
                return pid
        return None

    def wait_until_healthy(self) -> "Service":
        try:
            wait_until(self._is_healthy_or_dead, START_SECONDS, "/health answers 200")
        except TimeoutError:
            raise TimeoutError(f"the service did not get healthy:\n{self.output}") from None
        if self.process.poll() is not None:
            raise RuntimeError(f"the service ended:\n{self.output}")
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it, and return its exit code. Kills what is left when it does not stop in time."""
        family = {self.process.pid, *descendants(self.process.pid)}
        self.process.send_signal(how)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            for pid in filter(is_running, family if self.process.poll() is None else ()):
                os.kill(pid, signal.SIGKILL)

    def _is_healthy_or_dead(self) -> bool:
        if self.process.poll() is not None:
            return True
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False
