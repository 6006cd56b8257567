"""The engine: rows of token ids in, token ids out. It knows no text, no Redis and no Django.

A step is schedule, launch, collect. With a back end that overlaps, the step before is collected
while the device runs the one just launched, so that no host work is on the device's critical path;
a row may then be launched once more after it has ended, and that result is dropped.
"""

from dataclasses import dataclass

from inference.bus.messages import Generate, RowOutput, RunningRow, TokenLogprobs
from inference.engine.backend import Backend, PendingStep, StepResult
from inference.engine.scheduler import Phase, Row, RowKey, Scheduler, Step

Output = tuple[str, RowOutput]  # (the web process that asked, its row's news)


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


class Engine:
    """Runs requests on a back end. Not thread-safe: one loop calls it."""

    def __init__(self, backend: Backend, *, step_tokens: int) -> None:
        self.counters = Counters()
        self._backend = backend
        self._scheduler = Scheduler(backend.slots, step_tokens)
        self._inflight: tuple[Step, PendingStep] | None = None

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._inflight is not None

    @property
    def capacity(self) -> int:
        """Rows that could start now."""
        return self._scheduler.free_slots - len(self._scheduler.waiting)

    def submit(self, request: Generate) -> None:
        self._scheduler.add(request)

    def cancel(self, key: RowKey) -> Output | None:
        """End a row now. None if there is no such row."""
        row = self._scheduler.find(key)
        return self._end(row, "cancelled") if row else None

    def expire(self, now: float) -> list[Output]:
        """End the rows whose deadline (Unix seconds) has passed."""
        late = [row for row in self._scheduler.rows() if 0 < row.request.deadline < now]
        return [self._end(row, "expired", error="the request's deadline has passed") for row in late]

    def abort(self, finish: str, error: str = "") -> list[Output]:
        """End every row, whatever it was doing."""
        self._inflight = None
        return [self._end(row, finish, error=error) for row in self._scheduler.rows()]

    def step(self) -> list[Output]:
        """Launch the next step and return the news of a finished one (not always the same one)."""
        step = self._scheduler.schedule()
        launched = (step, self._launch(step)) if step.plan else None
        finished = launched
        if self._backend.overlap:
            finished, self._inflight = self._inflight, launched
        return self._collect(*_wait(finished)) if finished else []

    def running_rows(self) -> list[RunningRow]:
        return [
            RunningRow(
                web=row.request.web,
                row=row.request.row,
                request_id=row.request.request_id,
                endpoint=row.request.endpoint,
                state=row.phase.value,  # type: ignore[arg-type]
                prompt_tokens=len(row.request.prompt),
                prefilled_tokens=min(row.fed, len(row.request.prompt)),
                generated_tokens=row.generated,
                max_tokens=row.request.max_tokens,
                created=row.request.created,
            )
            for row in self._scheduler.rows()
        ]

    # -- one step -------------------------------------------------------------------------------

    def _launch(self, step: Step) -> PendingStep:
        for row in step.opened:
            request = row.request
            self._backend.open_slot(row.slot, request.sampling, request.stop_ids, request.generated, request.prompt)
        self.counters.steps += 1
        self.counters.prompt_tokens += sum(len(chunk.tokens) for chunk in step.plan.chunks)
        return self._backend.launch(step.plan)

    def _collect(self, step: Step, result: StepResult) -> list[Output]:
        outputs = []
        for chunk, row in zip(step.plan.chunks, step.chunked, strict=True):
            if row.prompt_logprobs is not None:
                row.prompt_logprobs += result.prompt_logprobs[chunk.slot]
            if row.phase is Phase.DECODE and not row.request.max_tokens and not row.unfed:
                outputs.append(self._end(row, "length"))  # only the prompt's logprobs were wanted
        for row in step.sampled:
            if row.phase is not Phase.ENDED:
                outputs.append(self._advance(row, result))
        return outputs

    def _advance(self, row: Row, result: StepResult) -> Output:
        request, token = row.request, result.tokens[row.slot]
        if token in request.stop_ids:
            return self._end(row, "stop", stop_id=token)
        output = RowOutput(request.row, row.generated, [token], prompt_logprobs=_taken_prompt_logprobs(row))
        if request.logprobs >= 0:
            output.logprobs = [result.logprobs[row.slot]]
        row.generated += 1
        self.counters.generated_tokens += 1
        if row.generated >= request.max_tokens:
            output.finish = "length"
            self._scheduler.end(row)
        return request.web, output

    def _end(self, row: Row, finish: str, *, stop_id: int = -1, error: str = "") -> Output:
        self._scheduler.end(row)
        output = RowOutput(row.request.row, row.generated, prompt_logprobs=_taken_prompt_logprobs(row))
        output.finish, output.stop_id, output.error = finish, stop_id, error  # type: ignore[assignment]
        return row.request.web, output


def _wait(finished: tuple[Step, PendingStep]) -> tuple[Step, StepResult]:
    step, pending = finished
    return step, pending.result()


def _taken_prompt_logprobs(row: Row) -> list[TokenLogprobs | None] | None:
    """The prompt's logprobs, once: they go out with the row's first output. The first token has none."""
    if row.prompt_logprobs is None:
        return None
    logprobs, row.prompt_logprobs = [None, *row.prompt_logprobs], None
    return logprobs[: len(row.request.prompt)]
