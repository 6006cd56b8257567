"""Keeps child processes alive, and sees to it that they end.

Children are started in the order given and stopped in the opposite one, group by group. A child that
dies is started again after a pause that doubles while it keeps dying; one that exits with EX_CONFIG
says that no restart will help, and ends everything.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

EX_CONFIG = os.EX_CONFIG  # 78 in sysexits.h: the configuration is wrong

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
SETTLED_SECONDS = 30.0  # a child that lived this long starts again with the first pause
STOP_SECONDS = 40.0  # what a child may take to stop before it is killed
TETHER = Path(__file__).with_name("tether.py")
NAME_WIDTH = 7


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    command: Sequence[str]
    pass_fds: tuple[int, ...] = ()
    ready: Callable[[], Coroutine[Any, Any, None]] | None = None  # waits until later groups may start


class Supervisor:
    """`prefix`: print each line of the children behind their name; else they write to our own output."""

    def __init__(self, groups: Sequence[Sequence[Child]], *, prefix: bool) -> None:
        self._groups = groups
        self._prefix = prefix
        self._stop = asyncio.Event()
        self._processes: dict[str, Process] = {}
        self._exit_code = 0

    async def run(
        self,
        when_started: Callable[[], Coroutine[Any, Any, None]] | None = None,
        when_stopping: Callable[[], None] | None = None,
    ) -> int:
        """Run until SIGTERM, SIGINT or a child's EX_CONFIG, and return the exit code for it.

        `when_started` runs beside the children, `when_stopping` before the first of them is stopped.
        A second signal kills the children instead of waiting for them.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        keepers: list[list[asyncio.Task[None]]] = []
        greeting: asyncio.Task[None] | None = None
        try:
            for group in self._groups:
                if self._stop.is_set():
                    break
                keepers.append([asyncio.create_task(self._keep(child)) for child in group])
                await self._until_ready(group)
            if when_started:
                greeting = asyncio.create_task(when_started())
            await self._stop.wait()
        finally:
            if greeting:
                greeting.cancel()
            if when_stopping:
                when_stopping()
            for tasks, group in reversed(list(zip(keepers, self._groups, strict=False))):
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.gather(*(self._end(child.name) for child in group))
        return self._exit_code

    def stop(self, exit_code: int = 0) -> None:
        self._exit_code = exit_code
        self._stop.set()

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            if self._prefix:  # else the one above us, which sent the signal, has said so
                self._say("stopping; a second signal does not wait")
            self.stop()
            return
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()

    async def _until_ready(self, group: Sequence[Child]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        for child in group:
            if child.ready:
                ready = asyncio.create_task(child.ready())
                await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
                ready.cancel()
        stopped.cancel()

    async def _keep(self, child: Child) -> None:
        """Start the child again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = loop.time()
            try:
                code = await (await self._start(child)).wait()
                end = f"ended {_how(code)}"
            except OSError as error:  # no memory for another process, say: perhaps later
                code, end = None, f"could not be started: {error}"
            if code == EX_CONFIG:
                self.stop(EX_CONFIG)
                return
            if loop.time() - started > SETTLED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._say(f"{child.name} {end}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _start(self, child: Child) -> Process:
        # A session of its own: Ctrl-C reaches us alone, and we stop the children in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(TETHER), str(os.getpid())),
            *child.command,
            stdin=DEVNULL,
            stdout=PIPE if self._prefix else None,
            stderr=STDOUT if self._prefix else None,
            pass_fds=child.pass_fds,
            start_new_session=True,
        )
        self._processes[child.name] = process
        if process.stdout:
            asyncio.create_task(_print_lines(child.name, process.stdout))  # noqa: RUF006  (ends with the child)
        return process

    async def _end(self, name: str) -> None:
        process = self._processes.get(name)
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._say(f"{name} did not stop within {STOP_SECONDS:g} s; killing it")
            process.kill()
            await process.wait()

    def _say(self, message: str) -> None:
        if self._prefix:
            _print("serve", message)
        else:
            _write(message, sys.stderr)


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    # Real-time signals have no names.
    return f"by {signal.Signals(-code).name if -code in list(signal.Signals) else f'signal {-code}'}"


async def _print_lines(name: str, stream: asyncio.StreamReader) -> None:
    rest = b""
    while data := await stream.read(65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _print(name, line.decode(errors="replace"))
    if rest:
        _print(name, rest.decode(errors="replace"))


def _print(name: str, line: str) -> None:
    _write(f"{name:<{NAME_WIDTH}}| {line}", sys.stdout)


def _write(line: str, stream: TextIO) -> None:
    """Print a line, and leave out what cannot be written: the disk is full, say, or nobody reads us any more.

    The children are started again and read all the same; they would block if nobody read them.
    """
    with suppress(OSError, UnicodeError):
        print(line, file=stream, flush=True)
