"""Which rows move in the next step. Pure Python: no torch, no clock, no I/O.

Continuous batching: rows join and leave at every step. A row waits for a slot, has its prompt
prefilled in chunks, then decodes one token a step. Every step carries all decoding rows and, under
a token budget, pieces of prompts; so a long prompt costs running streams a bounded delay.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from inference.bus.messages import END_OF_TEXT, Generate, TokenLogprobs
from inference.engine.backend import Chunk, StepPlan
from inference.engine.beginning import Beginning
from inference.engine.grammar import RowGrammar

RowKey = tuple[str, int]


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    ENDED = "ended"


WAITING, PREFILL, DECODE, ENDED = Phase  # looking one up in the class takes its time, for every row of every step


@dataclass(slots=True, eq=False)
class Row:
    """One request and how far it has come."""

    request: Generate
    phase: Phase = WAITING
    slot: int = -1
    fed: int = 0  # of `feed`: tokens whose chunk was launched
    drawn: int = 0  # tokens asked of the sampler, the resumed ones included; results may still be on their way
    generated: int = 0  # tokens whose result is known
    prompt_logprobs: list[TokenLogprobs] | None = None  # known so far, from `first_scored` on; None: not wanted
    feed: list[int] = field(default_factory=list)
    grammar: RowGrammar | None = None  # what may be drawn next depends on the text so far
    beginning: Beginning | None = None  # how it gets the state of its history
    ahead: int = 0  # tokens of `feed` before the prompt; negative when the prompt's own beginning was cached
    kept: list[tuple[int, bytes]] = field(default_factory=list)  # (length of `feed`, name) of states to keep
    output: list[int] = field(default_factory=list)  # ids drawn, the resumed ones included

    def __post_init__(self) -> None:
        # There are no logits before a first token: an empty prompt starts as a new document does.
        self.feed = self.request.prompt + self.request.generated or [END_OF_TEXT]
        self.drawn = self.generated = len(self.request.generated)
        self.output = list(self.request.generated)
        if self.request.prompt_logprobs >= 0:
            self.prompt_logprobs = []

    @property
    def key(self) -> RowKey:
        return self.request.web, self.request.row

    @property
    def first_scored(self) -> int:
        """The first prompt token whose logprob is wanted; nothing says how likely the first of all is."""
        return max(min(self.request.prompt_logprobs_from, len(self.request.prompt)), 1)

    @property
    def unfed(self) -> int:
        return len(self.feed) - self.fed

    @property
    def reachable(self) -> int:
        """Tokens that one chunk may feed: a chunk ends where the state is to be kept."""
        return (self.kept[0][0] if self.kept else len(self.feed)) - self.fed

    @property
    def ready(self) -> bool:
        return (self.grammar is None or self.grammar.ready) and (self.beginning is None or self.beginning.ready)

    @property
    def failure(self) -> str:
        """Why the row cannot begin, known once it is ready; "" if it can."""
        return self.beginning.error if self.beginning else ""

    def begin(self) -> None:
        """Settle what is fed, now that the row has a slot."""
        if self.beginning:
            plain = len(self.feed)
            self.feed, self.kept = self.beginning.take(self.feed)
            self.ahead = len(self.feed) - plain

    @property
    def wants_token(self) -> bool:
        return self.drawn < self.request.max_tokens

    @property
    def can_decode(self) -> bool:
        """False while a row with a grammar waits for the result by which its next draw is constrained."""
        return self.drawn < self.request.max_tokens and (self.grammar is None or self.drawn == self.generated)


@dataclass(slots=True)
class Step:
    """A plan and the rows behind it, in the order of the plan's slots."""

    plan: StepPlan
    opened: list[Row]  # rows whose slot must be opened before the launch
    sampled: list[Row]
    chunked: list[Row]
    constrained: list[Row]  # of `sampled`, those with a grammar


class Scheduler:
    """Gives slots to rows and tokens to steps."""

    def __init__(self, slots: int, step_tokens: int) -> None:
        """`slots`: rows that can run at once. `step_tokens`: most tokens of one step, decodes included."""
        if slots < 1 or step_tokens < 1:
            raise ValueError(f"slots and step_tokens must be positive, got {slots} and {step_tokens}")
        self.step_tokens = step_tokens
        self.waiting: deque[Row] = deque()
        self.running: dict[RowKey, Row] = {}
        self._free = list(range(slots))[::-1]

    @property
    def free_slots(self) -> int:
        return len(self._free)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def rows(self) -> list[Row]:
        return [*self.running.values(), *self.waiting]

    def add(self, request: Generate, grammar: RowGrammar | None = None) -> Row:
        row = Row(request, grammar=grammar)
        self.waiting.append(row)
        return row

    def find(self, key: RowKey) -> Row | None:
        return self.running.get(key) or next((row for row in self.waiting if row.key == key), None)

    def end(self, row: Row) -> None:
        """Take a row out and free its slot. Steps already launched may still name the slot."""
        if row.phase is WAITING:
            self.waiting.remove(row)
        elif row.phase is not ENDED:
            del self.running[row.key]
            self._free.append(row.slot)
        row.phase = ENDED

    def schedule(self) -> Step:
        """The next step; its plan is empty when no row can move. Counts the step as launched."""
        opened = self._admit()
        decoding = [row for row in self.running.values() if row.phase is DECODE and row.can_decode]
        plan = StepPlan([row.slot for row in decoding])
        chunked = self._add_chunks(plan, max(self.step_tokens - len(decoding), 1))
        sampled = decoding + [row for row, chunk in zip(chunked, plan.chunks, strict=True) if chunk.sample]
        for row in sampled:
            row.drawn += 1
        plan.logprobs = {row.slot: row.request.logprobs for row in sampled if row.request.logprobs >= 0}
        return Step(plan, opened, sampled, chunked, [row for row in sampled if row.grammar])

    def _admit(self) -> list[Row]:
        opened, unready = [], []
        while self.waiting and self._free:
            row = self.waiting.popleft()
            if not row.ready:
                unready.append(row)
                continue
            row.slot = self._free.pop()
            row.phase = PREFILL
            row.begin()
            self.running[row.key] = row
            opened.append(row)
        self.waiting.extendleft(reversed(unready))
        return opened

    def _add_chunks(self, plan: StepPlan, budget: int) -> list[Row]:
        """Spend `budget` prompt tokens: half on the oldest prompt, the rest on the shortest first.

        So short prompts overtake a long one, and a stream of short ones does not starve it. Returns the rows.
        """
        prefilling = [row for row in self.running.values() if row.phase is PREFILL]
        if not prefilling:
            return []
        oldest = prefilling[0]
        share = {oldest: min(oldest.reachable, -(-budget // 2))}
        budget -= share[oldest]
        for row in sorted(prefilling, key=lambda row: len(row.feed) - row.fed):
            if not budget:
                break
            more = min(row.reachable - share.get(row, 0), budget)
            if more > 0:
                share[row] = share.get(row, 0) + more
                budget -= more
        chunked = [row for row in prefilling if share.get(row)]
        plan.chunks = [_cut_chunk(row, share[row]) for row in chunked]
        return chunked


def _cut_chunk(row: Row, size: int) -> Chunk:
    """The next tokens of a row's prompt, which count as fed from now on."""
    tokens = row.feed[row.fed : row.fed + size]
    skipped = row.first_scored - 1 - (row.fed - row.ahead)  # a position scores the token behind it
    row.fed += size
    last = not row.unfed
    if last:
        row.phase = DECODE
    return Chunk(
        slot=row.slot,
        tokens=tokens,
        sample=last and row.wants_token,
        prompt_logprobs=row.request.prompt_logprobs,
        skipped=min(max(skipped, 0), size),
        next_token=-1 if last else row.feed[row.fed],
    )
