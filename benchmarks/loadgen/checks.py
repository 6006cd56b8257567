"""What options cannot be together, and values that their types do not tell to be wrong. All raise BadOption."""

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from benchmarks.loadgen import declare, foreign
from benchmarks.loadgen.declare import BadOption

if TYPE_CHECKING:
    from benchmarks.loadgen.options import Profile

CONVERSATIONS = ("conversations", "synthetic_conversations")
TOKENIZERS = ("rwkv", "none")


def check(profile: "Profile") -> None:
    _check_load(profile)
    _check_lengths(profile)
    if profile.users is None:
        for name in ("ramp_up_time", "max_active_conversations"):
            if getattr(profile, name) is not None:
                raise BadOption(f"{declare.flag(name)} needs --users")
    if profile.dataset_name in CONVERSATIONS and profile.users is None:
        raise BadOption(f"--dataset-name {profile.dataset_name} needs --users: a turn waits for the one before it")
    if profile.stateful and profile.dataset_name not in CONVERSATIONS:
        raise BadOption(f"--stateful needs --dataset-name {' or '.join(CONVERSATIONS)}")
    parse_percentiles(profile.metric_percentiles)
    if profile.template and profile.backend != "openai":
        raise BadOption("--template stands in place of --backend: give one of them")


def parse_stages(stages: list[str]) -> tuple[tuple[float, float], ...]:
    """`RATE:SECONDS` each. Raises BadOption."""
    return tuple(_parse_stage(stage) for stage in stages)


def parse_percentiles(text: str) -> list[float]:
    """Raises BadOption."""
    try:
        percentiles = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadOption(f"--metric-percentiles: {text!r} is not a list of numbers, such as 50,99") from None
    if not all(0 <= share <= 100 for share in percentiles):
        raise BadOption(f"--metric-percentiles: {text!r} is not between 0 and 100")
    return percentiles


def _parse_stage(stage: str) -> tuple[float, float]:
    rate, _, seconds = stage.partition(":")
    try:
        parsed = float(rate), float(seconds)
    except ValueError:
        raise BadOption(f"--stages: {stage!r} is not of the form RATE:SECONDS") from None
    if not (0 <= parsed[0] < inf and 0 < parsed[1] < inf):
        raise BadOption(f"--stages: {stage!r} needs a rate of at least 0 and seconds above 0")
    return parsed


def _check_load(profile: "Profile") -> None:
    """One way to say when requests are sent, and a ramp that can be drawn."""
    given = {
        "--users": profile.users is not None,
        "--request-rate": profile.request_rate != inf,
        "--ramp-up-strategy": bool(profile.ramp_up_strategy),
        "--stages": bool(profile.stages),
        "--self-timed": bool(profile.self_timed),
    }
    ways = [name for name, used in given.items() if used]
    if len(ways) > 1:
        raise BadOption(f"{' and '.join(ways)} exclude each other: give one of them")
    parse_stages(profile.stages)
    if profile.sinus_amplitude and profile.request_rate == inf:
        raise BadOption("--sinus-amplitude swings around --request-rate, which is not given")
    if profile.sinus_amplitude > profile.request_rate:
        raise BadOption("--sinus-amplitude is larger than --request-rate: the rate would be negative")
    if profile.request_rate == inf and not ways and profile.num_prompts is None and profile.duration:
        raise BadOption("--duration needs --num-prompts, a rate or --users: without them all is sent at once")
    if profile.ramp_up_strategy:
        _check_ramp(profile)
    elif profile.ramp_up_start_rps is not None or profile.ramp_up_end_rps is not None:
        raise BadOption("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")


def refuse_foreign(values: Mapping[str, Any]) -> None:
    """What other tools have and this one has not, before the choices are merely listed."""
    name = str(values.get("dataset_name"))
    if name in foreign.DATASETS:
        raise BadOption(f"--dataset-name: {name} is not here: {foreign.DATASETS[name]}")
    tokenizer = values.get("tokenizer")
    if tokenizer is not None and tokenizer not in TOKENIZERS:
        raise BadOption(
            f"--tokenizer: {tokenizer!r} is not here: use rwkv, the World vocabulary, or none for another model, "
            "where the server's counts are taken and the prompts' lengths are estimated"
        )


def _check_lengths(profile: "Profile") -> None:
    ratio = profile.random_range_ratio
    if isinstance(ratio, dict) and (unknown := sorted(ratio.keys() - {"input", "output"})):
        raise BadOption(f"--random-range-ratio: {unknown[0]!r} is neither input nor output")
    if 0 < profile.limit_max_tokens < profile.limit_min_tokens:
        raise BadOption("--limit-min-tokens is larger than --limit-max-tokens")
    if profile.dataset_name in CONVERSATIONS:
        if profile.batch_size > 1:
            raise BadOption(f"--batch-size: the turns of --dataset-name {profile.dataset_name} are sent one by one")
    elif profile.limit_max_tokens or profile.limit_min_tokens >= 0 or profile.max_retries:
        raise BadOption(
            "--limit-max-tokens, --limit-min-tokens and --max-retries are of conversations: "
            f"they need --dataset-name {' or '.join(CONVERSATIONS)}"
        )


def _check_ramp(profile: "Profile") -> None:
    start, end = profile.ramp_up_start_rps, profile.ramp_up_end_rps
    if start is None or end is None:
        raise BadOption("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if start > end:
        raise BadOption("--ramp-up-start-rps is larger than --ramp-up-end-rps")
    if start == 0 and (profile.ramp_up_strategy == "exponential" or profile.ramp_up_by == "index"):
        raise BadOption("--ramp-up-start-rps: 0 would never send the first request of an exponential ramp or by index")
    without_count = profile.num_prompts is None and profile.duration
    if profile.ramp_up_by == "index" and (profile.ramp_up_seconds or without_count):
        raise BadOption("--ramp-up-by index goes over --num-prompts requests: give those, and no --ramp-up-seconds")
