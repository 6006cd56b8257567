"""The engine: rows of token ids in, token ids out. It knows no text, no Redis and no Django.

A step is schedule, launch, collect. With a back end that overlaps, the step before is collected
while the device runs the one just launched, so that no host work is on the device's critical path;
a row may then be launched once more after it has ended, and that result is dropped.
"""

from dataclasses import dataclass

from inference.bus.messages import END_OF_TEXT, Generate, RowOutput, RunningRow, TokenLogprobs
from inference.engine.backend import Backend, PendingStep, StepResult
from inference.engine.beginning import Beginning
from inference.engine.grammar import Grammars
from inference.engine.scheduler import DECODE, ENDED, Row, RowKey, Scheduler, Step
from inference.engine.state_cache import StateCache
from inference.history import extend

Output = tuple[str, RowOutput]  # (the web process that asked, its row's news)


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0


class Engine:
    """Runs requests on a back end. Not thread-safe: one loop calls it."""

    def __init__(
        self,
        backend: Backend,
        *,
        step_tokens: int,
        grammars: Grammars | None = None,
        states: StateCache | None = None,
    ) -> None:
        """`grammars` and `states` may be left out where no request has a grammar or a history.

        Rows run in the first slots of the back end; the last ones are those of `states`.
        """
        self.counters = Counters()
        self.states = states
        self.stalled = False  # the last step had nothing to run, though there are rows
        self.slots = backend.slots - (states.slots if states else 0)
        self._grammars = grammars
        self._backend = backend
        self._scheduler = Scheduler(self.slots, step_tokens)
        self._inflight: tuple[Step, PendingStep] | None = None

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._inflight is not None

    @property
    def capacity(self) -> int:
        """Rows that could start now."""
        return self._scheduler.free_slots - len(self._scheduler.waiting)

    def submit(self, request: Generate) -> None:
        grammar = None
        if request.grammar:
            assert self._grammars is not None, "this engine was made without grammars"
            grammar = self._grammars.start(request.grammar, request.generated)
        row = self._scheduler.add(request, grammar)
        if self.states and request.history:
            row.beginning = Beginning(self.states, request)

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
        failed = self._constrain(step) if step.constrained else []
        failed += [self._end(row, "error", error=row.failure) for row in step.opened if row.failure]
        failed += self._open(step)
        launched = (step, self._launch(step)) if step.plan else None
        finished = launched
        self.stalled = launched is None and self._inflight is None and self.has_work
        if self._backend.overlap:
            finished, self._inflight = self._inflight, launched
        return failed + (self._collect(*_wait(finished)) if finished else [])

    def running_rows(self) -> list[RunningRow]:
        """Every row that has not ended. May be called from another thread, while rows end."""
        phases = [(row, row.phase) for row in self._scheduler.rows()]
        return [
            RunningRow(
                web=row.request.web,
                row=row.request.row,
                request_id=row.request.request_id,
                endpoint=row.request.endpoint,
                state=phase.value,  # type: ignore[arg-type]
                prompt_tokens=len(row.request.prompt),
                prefilled_tokens=min(max(row.fed - row.ahead, 0), len(row.request.prompt)),
                generated_tokens=row.generated,
                max_tokens=row.request.max_tokens,
                created=row.request.created,
            )
            for row, phase in phases
            if phase is not ENDED
        ]

    # -- one step -------------------------------------------------------------------------------

    def _constrain(self, step: Step) -> list[Output]:
        """Fill the masks of the rows with a grammar. Ends those whose grammar has failed."""
        assert self._grammars is not None
        grammars = {row: row.grammar for row in step.constrained if row.grammar}
        masks = self._grammars.masks(list(grammars.values()))
        step.plan.masks = {row.slot: mask for row, mask in zip(grammars, masks, strict=True)}
        return [self._end(row, "error", error=grammar.error) for row, grammar in grammars.items() if grammar.error]

    def _open(self, step: Step) -> list[Output]:
        """Make the slots of new rows theirs. Ends those that the back end refuses: they alone are at fault.

        What the plan still has of a row that has ended runs in a slot that is nobody's, and its result is dropped.
        """
        refused = []
        for row in step.opened:
            request = row.request
            try:
                self._backend.open_slot(row.slot, request.sampling, request.stop_ids, request.generated, request.prompt)
            except ValueError as error:
                for chunk in step.plan.chunks:
                    if chunk.slot == row.slot:  # its ids may be none of the model's
                        chunk.tokens, chunk.next_token = [END_OF_TEXT] * len(chunk.tokens), -1
                if row.phase is not ENDED:
                    refused.append(self._end(row, "error", error=str(error)))
                continue
            if row.beginning:
                row.beginning.place(row.slot)
        return refused

    def _launch(self, step: Step) -> PendingStep:
        self.counters.steps += 1
        self.counters.prompt_tokens += sum(len(chunk.tokens) for chunk in step.plan.chunks)
        launched = self._backend.launch(step.plan)
        for row in step.chunked:
            if row.phase is not ENDED and row.beginning and row.kept and row.fed == row.kept[0][0]:
                row.beginning.keep(row.slot, row.kept.pop(0)[1])
        return launched

    def _collect(self, step: Step, result: StepResult) -> list[Output]:
        outputs = []
        for chunk, row in zip(step.plan.chunks, step.chunked, strict=True):
            if row.prompt_logprobs is not None:
                row.prompt_logprobs += result.prompt_logprobs[chunk.slot]
            if row.phase is DECODE and not row.request.max_tokens and not row.unfed:
                self._park(row)
                outputs.append(self._end(row, "length"))  # only the prompt's logprobs were wanted, or its state
        moved = [row for row in step.sampled if row.phase is not ENDED]
        return outputs + [self._advance(row, result) for row in moved]

    def _advance(self, row: Row, result: StepResult) -> Output:
        request, token = row.request, result.tokens[row.slot]
        if token in request.stop_ids:
            self._park(row)
            return self._end(row, "stop", stop_id=token)
        row.output.append(token)
        output = RowOutput(request.row, row.generated, [token])
        if row.prompt_logprobs is not None:
            output.prompt_logprobs = _taken_prompt_logprobs(row)
        if request.logprobs >= 0:
            output.logprobs = [result.logprobs[row.slot]]
        if row.beginning:
            output.cached_tokens = row.beginning.cached
        row.generated += 1
        self.counters.generated_tokens += 1
        complete = row.grammar is not None and row.grammar.advance(token)
        if complete or row.generated >= request.max_tokens:
            output.finish = "stop" if complete else "length"
            self._park(row, pending=[token])
            self._scheduler.end(row)
        return request.web, output

    def _park(self, row: Row, pending: list[int] | None = None) -> None:
        """Keep the state of a row that has come to its end, if it is wanted; `pending` was drawn and not fed."""
        request = row.request
        if self.states and request.keep and request.history:
            ids = request.prompt + row.output
            digest, tokens = extend(request.history.digest, ids), request.history.tokens + len(ids)
            goes_on = request.history.tokens and not request.history.stays
            behind = request.history.digest if goes_on else b""
            self.states.park(row.slot, digest, tokens, pending or [], behind=behind)

    def _end(self, row: Row, finish: str, *, stop_id: int = -1, error: str = "") -> Output:
        self._scheduler.end(row)
        output = RowOutput(row.request.row, row.generated, prompt_logprobs=_taken_prompt_logprobs(row))
        output.finish, output.stop_id, output.error = finish, stop_id, error  # type: ignore[assignment]
        output.cached_tokens = row.beginning.cached if row.beginning else 0
        return row.request.web, output


def _wait(finished: tuple[Step, PendingStep]) -> tuple[Step, StepResult]:
    step, pending = finished
    return step, pending.result()


def _taken_prompt_logprobs(row: Row) -> list[TokenLogprobs | None] | None:
    """The prompt's logprobs, once: they go out with the row's first output."""
    if row.prompt_logprobs is None:
        return None
    logprobs, row.prompt_logprobs = [None] * row.first_scored + row.prompt_logprobs, None
    return logprobs[: len(row.request.prompt)]
