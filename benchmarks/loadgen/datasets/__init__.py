"""Where the prompts of a load come from. A data set is a module here with one function, and a line in DATASETS.

All of them are pure functions of their file, the options and the seed.
"""

from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from benchmarks.loadgen.datasets import (
    burstgpt,
    conversations,
    custom,
    local_files,
    sharegpt,
    sonnet,
    synthetic,
    timed_trace,
)
from benchmarks.loadgen.datasets.conversations import Conversation, Turn
from benchmarks.loadgen.datasets.source import Source
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.options import Profile
from benchmarks.loadgen.vocabulary import NoVocabulary, get_vocabulary

DATASETS = {
    "random": synthetic.random,
    "prefix_repetition": synthetic.prefix_repetition,
    "sharegpt": sharegpt.load,
    "sonnet": sonnet.load,
    "burstgpt": burstgpt.load,
    "custom": custom.load,
    "hf": local_files.load,
    "spec_bench": local_files.load,
    "xiaomi": sharegpt.load,
    "timed_trace": timed_trace.load,
}
CONVERSATIONS = {
    "conversations": conversations.load,
    "synthetic_conversations": conversations.synthesise,
}
# Their text means nothing, so that a model may end it at any token.
SYNTHETIC = frozenset(("random", "prefix_repetition", "burstgpt", "timed_trace", "synthetic_conversations"))


def load_prompts(profile: Profile, count: int) -> list[Prompt]:
    """`count` prompts, or fewer where the data set is smaller and must not be repeated. Raises BadOption.

    With --batch-size each is a batch of so many of the data set's own; one that cannot be filled is left out.
    """
    size = profile.batch_size
    prompts = _load_single_prompts(profile, count * size)
    if size == 1:
        return prompts
    if len(prompts) < size:
        raise BadOption(f"--batch-size: the data set holds {len(prompts)} prompts, and must not be repeated")
    return [_batch(prompts[start : start + size]) for start in range(0, len(prompts) - size + 1, size)]


def _load_single_prompts(profile: Profile, count: int) -> list[Prompt]:
    source = _source(profile, count)
    prompts = DATASETS[profile.dataset_name](source)
    if not prompts:
        raise BadOption(f"--dataset-path: {profile.dataset_path or profile.dataset_name} holds no usable prompt")
    if tokenizer_name(profile) == NoVocabulary.name:
        # Lengths by estimate: not to be taken for what a tokenizer says.
        prompts = [msgspec.structs.replace(prompt, prompt_tokens=None) for prompt in prompts]
    system = _system_prompt(profile)
    return [_behind(system, prompt) for prompt in prompts] if system else prompts


def load_plain_prompts(profile: Profile, count: int) -> list[Prompt]:
    """Random words that no data set holds."""
    return synthetic.random(_source(profile, count)) if count else []


def load_conversations(profile: Profile) -> list[Conversation]:
    """All conversations of the data set, cut to --max-turns and with the lengths asked for. Raises BadOption."""
    found = CONVERSATIONS[profile.dataset_name](_source(profile, profile.num_conversations))
    if not found:
        raise BadOption(f"--dataset-path: {profile.dataset_path} holds no conversation that begins with a user's turn")
    system = _system_prompt(profile)
    return [
        msgspec.structs.replace(
            conversation,
            turns=[_limited(profile, turn) for turn in conversation.turns[: profile.max_turns]],
            system=system or conversation.system,
        )
        for conversation in found
    ]


def describe(profile: Profile, items: list[Prompt] | list[Conversation]) -> dict[str, Any]:
    """What is kept of a data set with its run: two runs of one `sha256` sent the same things."""
    return {
        "name": profile.dataset_name,
        "items": len(items),
        "sha256": sha256(msgspec.json.encode(items)).hexdigest(),
        "tokenizer": tokenizer_name(profile),
    }


def tokenizer_name(profile: Profile) -> str:
    return NoVocabulary.name if profile.skip_tokenizer_init else profile.tokenizer


def _limited(profile: Profile, turn: Turn) -> Turn:
    most = _limit(profile.limit_max_tokens, turn.output_tokens)
    least = _limit(profile.limit_min_tokens, turn.output_tokens)
    if most is not None and least is not None:
        least = min(least, most)
    return msgspec.structs.replace(turn, output_tokens=most, min_output_tokens=least)


def _limit(given: int, of_data_set: int | None) -> int | None:
    return of_data_set if given == 0 else given if given > 0 else None


def _batch(prompts: list[Prompt]) -> Prompt:
    """As long as the longest of them, and due with the first."""
    lengths = [prompt.output_tokens for prompt in prompts if prompt.output_tokens is not None]
    counts = [prompt.prompt_tokens for prompt in prompts if prompt.prompt_tokens is not None]
    return Prompt(
        batch=prompts,
        output_tokens=max(lengths, default=None),
        prompt_tokens=sum(counts) if len(counts) == len(prompts) else None,
        timestamp=prompts[0].timestamp,
    )


def _source(profile: Profile, count: int) -> Source:
    if profile.prompt_seed is not None:
        profile = msgspec.structs.replace(profile, seed=profile.prompt_seed)
    draw = Random(f"{profile.seed}/{profile.dataset_name}")
    return Source(profile, count, draw, get_vocabulary(tokenizer_name(profile)))


def _system_prompt(profile: Profile) -> str:
    if not profile.system_prompt_path:
        return ""
    try:
        return Path(profile.system_prompt_path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"--system-prompt-path: {error}") from None


def _behind(system: str, prompt: Prompt) -> Prompt:
    if prompt.messages is not None:
        return msgspec.structs.replace(prompt, messages=[{"role": "system", "content": system}, *prompt.messages])
    return msgspec.structs.replace(prompt, text=f"{system}{prompt.text}", prompt_tokens=None)
