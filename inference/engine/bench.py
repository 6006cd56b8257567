"""How fast the CUDA back end is, case by case, and how near to what the device allows.

A case is ROWSxTOKENS: with one token, a decode step of that many rows; with more, the prefill of that
many prompts. "Forward" is the model alone, from token ids to logits. "Sampled" is the back end as the
step loop drives it: sampling with penalties, top-k and top-p, the drawn ids fed back, results read one
step late. "Sustained" is the same once it has gone on for seconds, as it does in a service: a device with a
power limit starts faster than it goes on. Every timed run has different tokens in every row and ends with a
check for finite logits.
"""

import bisect
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.cuda_backend import CudaBackend
from inference.engine.cuda_graphs import MOST_RECORDED_TOKENS
from inference.engine.cuda_model import CudaModel, CudaState
from inference.engine.model import Model, StatePool
from inference.engine.weights import Checkpoint, Dimensions
from kernels.packed import DeviceRows, PackedRows

WARM_UP = 3
SAMPLING = Sampling(top_k=50, top_p=0.6, presence=2.0, frequency=0.2, decay=0.996)
CANDIDATES = 5  # whose log probabilities are compared where greedy choices differ
LAST_ID = 65529  # ids behind it stand for nothing
SUSTAINED_SECONDS = 4.0  # of sampled steps: clocks need some of them to settle
SETTLED_SECONDS = 1.0  # of these, the last ones


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device can do, measured: bytes/s of a large copy (read + write), FLOP/s of a large fp16 product."""

    copy: float
    product: float


@dataclass(slots=True)
class CaseResult:
    case: str
    tok_s: float  # forward alone, median
    p10_ms: float
    p50_ms: float
    p90_ms: float
    sampled_tok_s: float | None
    sampled_p50_ms: float | None
    gb_s: float  # bytes the case must move over the median time
    tflop_s: float
    bound_tok_s: float
    share: float  # tok_s / bound_tok_s
    finite: bool
    sustained_tok_s: float | None = None  # sampled, median of the last of some seconds


@dataclass(frozen=True, slots=True)
class GreedyToken:
    token: int
    candidates: list[tuple[int, float]]  # the likeliest tokens with their log probabilities

    def gap_to(self, other: int) -> float:
        """How much likelier this token is than `other`, as a difference of log probabilities: at least, if by far."""
        known = dict(self.candidates)
        return known[self.token] - known.get(other, min(known.values()))


@dataclass(frozen=True, slots=True)
class Company:
    """Requests by themselves against the same ones among others."""

    requests: int
    unchanged: int  # of them, those whose whole text is the same
    equal_tokens: float
    widest_gap: float  # between the first two choices that differ, by log probability


@dataclass(frozen=True, slots=True)
class KernelTime:
    name: str
    launches: int
    ms: float


@dataclass(slots=True)
class Agreement:
    """The CUDA model against the PyTorch model in float32, fed the same tokens."""

    rows: int
    steps: int
    max_relative_error: float  # of a step's logits, in the 2-norm
    equal_greedy: float  # share of positions whose largest logit is the same


def measure_ceilings() -> Ceilings:
    """Takes about a second. Random data: zeros run faster than a model ever will."""
    source = torch.randint(0, 255, (2**31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, dtype=torch.float16, device="cuda") for _ in range(2))
    copy = statistics.median(_event_times(lambda: target.copy_(source), 10)) / 1e3
    product = statistics.median(_event_times(lambda: torch.mm(a, b), 10)) / 1e3
    return Ceilings(copy=2 * source.nbytes / copy, product=2 * 8192**3 / product)


class Bench:
    """One loaded model. `slots` bounds the rows of a decode case."""

    def __init__(self, checkpoint: Path, *, slots: int, state_dtype: torch.dtype, iterations: int) -> None:
        self.backend = CudaBackend(checkpoint, slots, "cuda", state_dtype)
        self.iterations = iterations
        self.ceilings = measure_ceilings()
        self._model: CudaModel = self.backend._forward
        self._state: CudaState = self.backend._state

    def run(self, case: str) -> CaseResult:
        """Raises ValueError if `case` is not ROWSxTOKENS, or has more rows than there are slots."""
        rows, tokens = parse_case(case)
        if rows > self.backend.slots:
            raise ValueError(f"case {case}: the back end has {self.backend.slots} slots")
        times, finite = self._decode(rows) if tokens == 1 else self._prefill(rows, tokens)
        p10, p50, p90 = (_quantile(times, share) for share in (0.1, 0.5, 0.9))
        sampled = _quantile(self._sampled(rows), 0.5) if tokens == 1 else None
        work = Work.of(self._model.sizes, rows, tokens, self._state.wkv.element_size())
        bound = rows * tokens / work.seconds(self.ceilings)
        return CaseResult(
            case=case,
            tok_s=rows * tokens / p50 * 1e3,
            p10_ms=p10,
            p50_ms=p50,
            p90_ms=p90,
            sampled_tok_s=rows / sampled * 1e3 if sampled else None,
            sampled_p50_ms=sampled,
            gb_s=(work.weight_bytes + work.row_bytes) / p50 / 1e6,
            tflop_s=work.flop / p50 / 1e9,
            bound_tok_s=bound,
            share=rows * tokens / p50 * 1e3 / bound,
            finite=finite,
        )

    def profile(self, case: str, most: int = 16) -> list[KernelTime]:
        """Where one run of the case spends the device's time, by kernel, the largest first.

        A kernel that starts before the one in front of it has ended is counted from its start: times overlap.
        """
        rows, tokens = parse_case(case)
        run, _ = self._decode_step(rows) if tokens == 1 else self._prefill_step(rows, tokens)
        run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        found = sorted(profiler.key_averages(), key=lambda one: -one.self_device_time_total)[:most]
        return [KernelTime(_short_name(one.key), one.count, one.self_device_time_total / 1e3) for one in found]

    def _decode(self, rows: int) -> tuple[list[float], bool]:
        replay, logits = self._decode_step(rows)
        times = _event_times(replay, self.iterations)
        return times, bool(torch.isfinite(logits[0]).all())

    def _prefill(self, rows: int, tokens: int) -> tuple[list[float], bool]:
        step, logits = self._prefill_step(rows, tokens)
        times = _event_times(step, self.iterations)
        return times, bool(torch.isfinite(logits[0]).all())

    @torch.inference_mode()
    def _decode_step(self, rows: int) -> tuple[Callable[[], None], list[Tensor]]:
        """A recorded step that feeds its greedy tokens back, and its logits."""
        packed = DeviceRows.single_tokens(torch.randperm(self.backend.slots, device="cuda")[:rows].int())
        tokens = _random_tokens(rows)

        def step() -> Tensor:
            logits = self._model.logits(*self._model.forward(tokens, self._state, packed))
            tokens.copy_(logits.argmax(-1))
            return logits

        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        return graph.replay, [logits]

    @torch.inference_mode()
    def _prefill_step(self, rows: int, tokens: int) -> tuple[Callable[[], None], list[Tensor]]:
        """A prefill of random prompts as the back end computes it, and the logits of its last run."""
        lengths, slots = [tokens] * rows, list(range(rows))
        ids = _random_tokens(rows * tokens)
        packed = DeviceRows.of_lengths(torch.tensor(slots, dtype=torch.int32, device="cuda"), lengths)
        ends, packed_ends = packed.ends(lengths)
        last = packed_ends.row_start[1:].long() - 1
        logits: list[Tensor] = []
        graph = self.backend._graphs.prompt(len(ids)) if len(ids) <= MOST_RECORDED_TOKENS else None
        if graph:
            graph.given.fill(slots, lengths, ids.tolist())

        def advance() -> tuple[Tensor, Tensor]:
            if graph is None:
                return self._model.advance(ids, self._state, packed)
            graph.replay()
            return graph.x, graph.y

        @torch.inference_mode()
        def step() -> None:
            x, y = advance()
            x, delta = self._model.finish(x[ends], y[ends], self._state, packed_ends)
            logits[:] = [self._model.logits(x[last], delta[last])]

        return step, logits

    def sustained(self, case: str) -> float:
        """Sampled tokens per second of a decode case once it has gone on for a while.

        To be had after all figures of single runs, which a device that has not cooled down yet would spoil.
        """
        rows, _ = parse_case(case)
        times = self._sampled(rows, seconds=SUSTAINED_SECONDS)
        left = 1e3 * (SUSTAINED_SECONDS - SETTLED_SECONDS)
        settled = bisect.bisect_left(list(accumulate(times)), left)
        return rows / _quantile(times[settled:], 0.5) * 1e3

    def _sampled(self, rows: int, seconds: float = 0.0) -> list[float]:
        """Milliseconds between the results of successive steps, as the step loop would see them, for `seconds`."""
        slots = torch.randperm(self.backend.slots)[:rows].tolist()  # scattered, as those of a service are
        for slot in slots:
            self.backend.open_slot(slot, msgspec.structs.replace(SAMPLING, seed=slot), [], [], [])
        plan = StepPlan(decode=slots)
        pending = self.backend.launch(plan)
        times: list[float] = []
        begun = time.perf_counter()
        then = begun
        while len(times) < WARM_UP + self.iterations or then - begun < seconds:
            following = self.backend.launch(plan)
            drawn = pending.result().tokens
            assert all(0 <= token <= LAST_ID for token in drawn.values()), (
                "the sampler drew an id that stands for nothing"
            )
            pending = following
            now = time.perf_counter()
            times.append((now - then) * 1e3)
            then = now
        pending.result()
        return times[WARM_UP:]

    def company(self, *, rows: int = 320, alone: int = 4, prompt: int = 36, tokens: int = 64) -> Company:
        """Greedy texts of `alone` requests by themselves and among `rows` - 1 others.

        Products of different numbers of rows add up in different orders, so equality to the bit is not to be had; what
        can differ is a choice between two logits that are equal but for that, and all that follows from it.
        """
        rows = min(rows, self.backend.slots)
        prompts = [_random_tokens(prompt).tolist() for _ in range(rows)]
        together = self._greedy(prompts, tokens)
        equal, unchanged, gaps = 0, 0, [0.0]
        for row, among_others in enumerate(together[:alone]):
            by_itself = self._greedy([prompts[row]], tokens)[0]
            same = [a.token == b.token for a, b in zip(by_itself, among_others, strict=True)]
            equal += sum(same)
            if all(same):
                unchanged += 1
            else:
                first = same.index(False)
                gaps.append(by_itself[first].gap_to(among_others[first].token))
        return Company(len(together[:alone]), unchanged, equal / (tokens * len(together[:alone])), max(gaps))

    def _greedy(self, prompts: list[list[int]], tokens: int) -> list[list[GreedyToken]]:
        slots = list(range(len(prompts)))
        for slot, prompt in enumerate(prompts):
            self.backend.open_slot(slot, Sampling(temperature=0), [], [], prompt)
        wanted = dict.fromkeys(slots, CANDIDATES)
        chunks = [Chunk(slot, prompt, sample=True) for slot, prompt in enumerate(prompts)]
        steps = [self.backend.launch(StepPlan(chunks=chunks, logprobs=wanted)).result()]
        plan = StepPlan(decode=slots, logprobs=wanted)
        steps += [self.backend.launch(plan).result() for _ in range(tokens - 1)]
        return [[GreedyToken(step.tokens[slot], step.logprobs[slot].top) for step in steps] for slot in slots]

    @torch.inference_mode()
    def drift(self, *, rows: int = 8, steps: int = 2048) -> Agreement:
        """States stored as fp16 against fp32, over `steps` of the same tokens: the fp32 one's greedy choices."""
        sizes, device = self._model.sizes, self.backend._device
        states = [CudaState.zeros(sizes, rows, device, dtype) for dtype in (torch.float32, torch.float16)]
        packed = DeviceRows.single_tokens(torch.arange(rows, dtype=torch.int32, device=device))
        tokens = _random_tokens(rows)
        worst, equal = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(steps):
            exact, stored = (self._model.logits(*self._model.forward(tokens, state, packed)) for state in states)
            worst = torch.maximum(worst, (stored - exact).norm() / exact.norm())
            equal += (stored.argmax(-1) == exact.argmax(-1)).sum()
            # Greedy text of a random model runs in circles, which would test a few states only.
            tokens = torch.where(torch.rand(rows, device=device) < 0.1, _random_tokens(rows), exact.argmax(-1).int())
        return Agreement(rows, steps, worst.item(), equal.item() / (rows * steps))

    @torch.inference_mode()
    def check(self, checkpoint: Path, *, rows: int = 8, prompt: int = 64, steps: int = 32) -> Agreement:
        """Feed both models the same random prompts, then the reference's greedy tokens."""
        reference = Model(Checkpoint(checkpoint), torch.device("cuda"), torch.float32)
        slots = list(range(rows))
        states = StatePool.zeros(reference.sizes, rows, torch.device("cuda"), torch.float32)
        self._state.shift.zero_()
        self._state.wkv.zero_()
        tokens, lengths = _random_tokens(rows * prompt), [prompt] * rows
        worst, equal = 0.0, 0
        for _ in range(steps + 1):
            packed = PackedRows(slots, lengths, "cuda")
            expected = reference.logits(reference.forward(tokens.long(), states, packed)[packed.last])
            device_rows = DeviceRows.of_lengths(torch.tensor(slots, dtype=torch.int32, device="cuda"), lengths)
            x, delta = self._model.forward(tokens, self._state, device_rows)
            found = self._model.logits(x[packed.last], delta[packed.last])
            worst = max(worst, ((found - expected).norm() / expected.norm()).item())
            equal += int((found.argmax(-1) == expected.argmax(-1)).sum())
            tokens, lengths = expected.argmax(-1).int(), [1] * rows
        return Agreement(rows, steps, worst, equal / (rows * (steps + 1)))


@dataclass(frozen=True, slots=True)
class Work:
    """What a case must do at least: weights once, states in and out, logits out; and its products."""

    weight_bytes: float
    row_bytes: float
    flop: float

    @classmethod
    def of(cls, sizes: Dimensions, rows: int, tokens: int, state_bytes: int) -> "Work":
        """The low-rank projections and vectors, under 3% of the weights, are left out of both.

        All but three of the last layer's twelve squares are for the last two positions of a row alone.
        """
        layers, width, vocab = sizes.layers, sizes.width, sizes.vocab
        matrices = 12 * width**2 * layers
        unwanted = 9 * width**2 * max(tokens - 2, 0)
        heads = vocab * width
        state = 2 * layers * width * 64 * state_bytes + 8 * layers * width
        return cls(
            weight_bytes=2.0 * (matrices + heads),
            row_bytes=float(rows * (state + 4 * vocab)),
            flop=2.0 * rows * (matrices * tokens - unwanted + heads),
        )

    def seconds(self, ceilings: Ceilings) -> float:
        """Products and their weights overlap; the states come on top, as no engine overlaps them."""
        return max(self.weight_bytes / ceilings.copy, self.flop / ceilings.product) + self.row_bytes / ceilings.copy


def parse_case(case: str) -> tuple[int, int]:
    try:
        rows, tokens = (int(part) for part in case.split("x"))
    except ValueError:
        raise ValueError(f"case {case!r} is not of the form ROWSxTOKENS, such as 8x1 or 1x1024") from None
    if rows < 1 or tokens < 1:
        raise ValueError(f"case {case!r}: rows and tokens must be at least 1")
    return rows, tokens


def describe_machine() -> dict[str, object]:
    device = f"--id=GPU-{torch.cuda.get_device_properties().uuid}"
    fields = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit"
    answer = subprocess.run(
        ["nvidia-smi", device, fields, "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "nvidia_smi": answer.stdout.strip(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def write_report(
    path: Path, bench: Bench, results: list[CaseResult], checks: dict[str, object], more: dict[str, object]
) -> None:
    model = bench.backend.model
    report = {
        **more,
        "machine": describe_machine(),
        "model": {"id": model.id, "fingerprint": model.fingerprint, "parameters": model.parameters},
        "ceilings": asdict(bench.ceilings),
        "sampling": msgspec.to_builtins(SAMPLING),
        "checks": checks,
        "results": [asdict(result) for result in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def _random_tokens(count: int) -> Tensor:
    return torch.randint(1, LAST_ID, (count,), dtype=torch.int32, device="cuda")


def _event_times(run: Callable[[], object], iterations: int) -> list[float]:
    """Milliseconds of each run on the device."""
    for _ in range(WARM_UP):
        run()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
    for begin, end in marks:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]


def _short_name(kernel: str) -> str:
    name = kernel.replace("void ", "").replace("(anonymous namespace)::", "")
    return name.split("(")[0][:60]


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
