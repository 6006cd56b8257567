"""A worker's sending of single requests: counted, bounded, and given up when told so."""

import asyncio
import re
import time
from contextlib import nullcontext
from random import Random

import msgspec

from benchmarks.loadgen.capture import exchange, open_session
from benchmarks.loadgen.exchange import Exchange, Prompt
from benchmarks.loadgen.messages import Progress, Task
from benchmarks.loadgen.records import ErrorClass, Phase, RequestRecord
from benchmarks.loadgen.target import find_backend, make_request

SPIN_SECONDS = 0.001  # the event loop's timers are in whole milliseconds; what is left is waited for awake
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_TAIL_PIECES = 4  # the usage of a stream is in its last frames


class Sent(msgspec.Struct):
    """A request that has ended. `ready` is the moment from which it might have been sent.

    `exchange` is None if it never was; the record then has the error already.
    """

    record: RequestRecord
    prompt: Prompt
    ready: float
    exchange: Exchange | None


class Sender:
    """Made in a running event loop, and closed there. Its clock counts from `epoch`, a moment of time.monotonic."""

    def __init__(self, task: Task) -> None:
        self.epoch = time.monotonic()
        self.ended: list[Sent] = []
        self.backend = find_backend(task.target.backend, task.target.template)
        self._task = task
        self._session = open_session(verify_tls=task.target.verify_tls)
        self._slots = asyncio.Semaphore(task.max_concurrency) if task.max_concurrency else None
        self._running: set[asyncio.Event] = set()
        self._stopped = asyncio.Event()
        self._begun = self._done = self._failed = self._tokens = 0
        self._ttfts: list[float] = []

    async def close(self) -> None:
        await self._session.close()

    def clock(self) -> float:
        return time.monotonic() - self.epoch

    @property
    def may_send(self) -> bool:
        """False once the load was stopped, or its duration is over."""
        deadline = self._task.deadline
        return not self._stopped.is_set() and (deadline is None or self.clock() < deadline)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped.set()

    def give_up(self) -> None:
        """Send nothing more, and cancel what runs."""
        self.stop()
        for cancel in self._running:
            cancel.set()

    async def wait_until(self, moment: float) -> bool:
        """Wait for a time of this clock; False if the load was stopped before, or ends before it.

        Times are absolute, so that being late once does not delay what follows.
        """
        while self.may_send and (left := moment - self.clock()) > 0:
            if left > SPIN_SECONDS:
                await self._sleep(left - SPIN_SECONDS)
            else:
                await asyncio.sleep(0)
        return self.may_send

    async def perform(
        self,
        prompt: Prompt,
        index: int,
        *,
        intended: float | None = None,
        user: int | None = None,
        phase: Phase = Phase.MEASURE,
    ) -> Sent:
        """Send one request and wait for its end. Where slots are bounded it first waits for one. Never raises for
        what the network or the server does."""
        record = RequestRecord(
            index=index,
            worker=self._task.worker,
            user=user,
            session=prompt.session,
            turn=prompt.turn,
            phase=phase,
            intended=intended,
        )
        ready = self.clock() if intended is None else intended
        waits = self._slots is not None and self._slots.locked()
        async with self._slots or nullcontext():
            sent = Sent(record, prompt, self.clock() if waits else ready, None)
            self.ended.append(sent)
            # The duration counts from the run's start, and a warm-up is ahead of it.
            if self.may_send or (phase is Phase.WARMUP and not self._stopped.is_set()):
                await self._send(sent)
            else:
                self._fail(record, ErrorClass.CANCELLED, "the load ended before a slot was free")
            return sent

    def progress(self) -> Progress:
        ttfts, self._ttfts = self._ttfts, []
        return Progress(self._begun, self._done, self._failed, self._tokens, ttfts)

    async def _send(self, sent: Sent) -> None:
        record, task = sent.record, self._task
        try:
            request = make_request(task.target, self.backend, sent.prompt, record.index)
        except ValueError as error:
            self._fail(record, ErrorClass.CLIENT_BUG, str(error))
            return
        cancel = asyncio.Event()
        self._running.add(cancel)
        timer = self._cancel_midway(record, cancel)
        counts = record.phase is not Phase.WARMUP
        self._begun += counts
        try:
            sent.exchange = await exchange(
                self._session,
                request.url,
                request.headers,
                request.body,
                self.clock,
                task.target.timeouts,
                cancel,
            )
        finally:
            self._running.discard(cancel)
            if timer:
                timer.cancel()
        if counts:
            self._count(sent.exchange)

    def _cancel_midway(self, record: RequestRecord, cancel: asyncio.Event) -> asyncio.TimerHandle | None:
        """Which requests are given up follows from the seed and their index alone."""
        task = self._task
        if record.phase is Phase.WARMUP or not task.cancel_fraction:
            return None
        if Random(f"{task.seed}/cancel/{record.index}").random() >= task.cancel_fraction:
            return None
        return asyncio.get_running_loop().call_later(task.cancel_after, cancel.set)

    def _fail(self, record: RequestRecord, error: ErrorClass, text: str) -> None:
        record.error, record.error_text, record.done = error, text, self.clock()
        self._failed += record.phase is not Phase.WARMUP

    def _count(self, captured: Exchange) -> None:
        if captured.error:
            self._failed += 1
            return
        self._done += 1
        self._tokens += _tokens_at_a_glance(captured)
        if captured.pieces:
            self._ttfts.append(captured.pieces[0][0] - captured.sent)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, unless the load is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return


def _tokens_at_a_glance(captured: Exchange) -> int:
    """For the live display alone: the usage that the answer ends with, or the number of its events."""
    tail = b"".join(data for _, data in captured.pieces[-_TAIL_PIECES:])
    if usage := _USAGE.findall(tail):
        return int(usage[-1])
    return sum(data.count(b"data:") for _, data in captured.pieces)
