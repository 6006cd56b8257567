"""Random words of given lengths: alone, and behind a few shared prefixes that a cache may keep."""

from math import ceil, floor

from benchmarks.loadgen.datasets.source import Source
from benchmarks.loadgen.exchange import Prompt


def random(source: Source) -> list[Prompt]:
    """Lengths are even between 1 - ratio and 1 + ratio of those asked for; a common prefix comes on top."""
    profile = source.profile
    prefix_tokens = profile.random_prefix_len
    prefix = source.vocabulary.words(prefix_tokens, source.draw)
    prompts = []
    for _ in range(source.count):
        tokens = _length(source, profile.input_len or profile.random_input_len, "input")
        output = _length(source, profile.output_len or profile.random_output_len, "output")
        text = prefix + source.vocabulary.words(tokens, source.draw)
        prompts.append(Prompt(text=text, output_tokens=output, prompt_tokens=prefix_tokens + tokens))
    return prompts


def prefix_repetition(source: Source) -> list[Prompt]:
    """Every prefix is used equally often, in random order unless --disable-shuffle."""
    profile, words = source.profile, source.vocabulary.words
    lengths = profile.prefix_repetition_prefix_len, profile.prefix_repetition_suffix_len
    prefixes = [words(lengths[0], source.draw) for _ in range(profile.prefix_repetition_num_prefixes)]
    return source.shuffled(
        [
            Prompt(
                text=prefixes[index % len(prefixes)] + words(lengths[1], source.draw),
                output_tokens=profile.output_len or profile.prefix_repetition_output_len,
                prompt_tokens=sum(lengths),
            )
            for index in range(source.count)
        ]
    )


def _length(source: Source, tokens: int, side: str) -> int:
    ratio = source.profile.random_range_ratio
    if isinstance(ratio, dict):
        ratio = ratio.get(side, 0.0)
    return source.draw.randint(max(1, floor(tokens * (1 - ratio))), ceil(tokens * (1 + ratio)))
