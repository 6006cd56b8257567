"""One process of the load: it sends its share, captures what comes, and reads it once everybody is done.

Started as `python -m benchmarks.loadgen.worker FD`, where FD is its end of a socket: nothing of its parent's, such as
Django or what it has in memory, is in this process.
"""

import asyncio
import gc
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from benchmarks.loadgen import audio, messages
from benchmarks.loadgen.health import sample_loop_lag
from benchmarks.loadgen.loops import run_load, warm_up
from benchmarks.loadgen.messages import Over, Pipe, Read, Ready, Report, Start, Stop, Task
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.sender import Sender, Sent
from benchmarks.loadgen.tokens import rwkv_counter
from benchmarks.loadgen.vocabulary import WorldVocabulary

PROGRESS_SECONDS = 0.25


def main(pipe: Pipe) -> None:
    """Do the task that comes first through `pipe`, as the messages behind it say."""
    # Ctrl-C in a terminal reaches the whole group: only the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket for each stream
    # These come when the supervisor is gone: nobody waits for the results.
    with suppress(asyncio.CancelledError, BrokenPipeError, EOFError):
        asyncio.run(_Worker(messages.receive_task(pipe), pipe).work())


class _Worker:
    def __init__(self, task: Task, pipe: Pipe) -> None:
        self._task = task
        self._pipe = pipe
        self._begin = asyncio.Event()
        self._read = asyncio.Event()

    async def work(self) -> None:
        self._sender = Sender(self._task)
        self._work = asyncio.current_task()
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this is not None
        loop.add_reader(self._pipe.fileno(), self._obey, this.cancel)
        try:
            await warm_up(self._sender, self._task)
            messages.send(self._pipe, Ready())
            await self._begin.wait()
            loop_lags: list[float] = []
            cpu_percent = await self._measure(loop_lags)
            messages.send(self._pipe, Over())
            await self._read.wait()
            messages.send(self._pipe, self._report(loop_lags, cpu_percent))
        finally:
            loop.remove_reader(self._pipe.fileno())
            await self._sender.close()

    def _obey(self, leave: Callable[[], object]) -> None:
        """Read one message. Without a supervisor there is nothing left to do."""
        try:
            message = messages.receive(self._pipe)
        except (EOFError, ConnectionResetError):
            leave()
            return
        if isinstance(message, Start):
            _move(self._sender.ended, message.epoch - self._sender.epoch)
            self._sender.epoch = message.epoch
            self._begin.set()
        elif isinstance(message, Stop):
            self._sender.stop()
            asyncio.get_running_loop().call_later(message.grace, self._sender.give_up)
            self._begin.set()  # one that has not begun ends at once
        elif isinstance(message, Read):
            self._read.set()

    async def _measure(self, loop_lags: list[float]) -> float:
        """Run the load, and return its CPU time in percent of one core."""
        sender, task = self._sender, self._task
        gc.collect()
        gc.disable()  # a collection would stop all streams, for longer the more was captured
        await sender.wait_until(0.0)
        if task.deadline is not None:
            # The loop's own clock is the monotonic one too.
            asyncio.get_running_loop().call_at(sender.epoch + task.deadline + task.grace, sender.give_up)
        reporter = asyncio.create_task(self._report_progress())
        wall, cpu = time.monotonic(), time.process_time()
        try:
            async with sample_loop_lag(loop_lags):
                await run_load(sender, task)
        finally:
            reporter.cancel()
            gc.enable()
        messages.send(self._pipe, sender.progress())
        return 100 * (time.process_time() - cpu) / max(time.monotonic() - wall, 1e-9)

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            messages.send(self._pipe, self._sender.progress())

    def _report(self, loop_lags: list[float], cpu_percent: float) -> Report:
        task, backend = self._task, self._sender.backend
        count_tokens = rwkv_counter() if task.tokenizer == WorldVocabulary.name else None
        send_lags = []
        for sent in self._sender.ended:
            if sent.exchange is None:
                continue
            read_exchange(
                backend,
                sent.prompt,
                sent.exchange,
                sent.record,
                count_tokens=count_tokens,
                keep_text=task.keep_text,
            )
            if sent.record.index >= 0:
                send_lags.append(sent.exchange.sent - sent.ready)
        ended = self._sender.ended
        answered = (sent.prompt for sent in ended if sent.record.index >= 0 and sent.record.succeeded)
        return Report([sent.record for sent in ended], send_lags, loop_lags, cpu_percent, audio.seconds(answered))


def _move(warmups: list[Sent], seconds: float) -> None:
    """The warm-up was timed before the run's start was known: put its times on the run's clock, below 0."""
    for sent in warmups:
        if sent.record.done is not None:
            sent.record.done -= seconds
        captured = sent.exchange
        if captured is None:
            continue
        captured.sent -= seconds
        captured.headers = None if captured.headers is None else captured.headers - seconds
        captured.done = None if captured.done is None else captured.done - seconds
        captured.pieces = [(moment - seconds, data) for moment, data in captured.pieces]


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
