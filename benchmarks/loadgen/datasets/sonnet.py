"""Lines of a poem: a fixed beginning of --sonnet-prefix-len tokens, then random lines up to --sonnet-input-len."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.loadgen.datasets.source import Source
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt

OWN_LINES = Path(__file__).with_name("sonnet.txt")
TASK = "Pick as many lines as you can from these poem lines:\n"


def load(source: Source) -> list[Prompt]:
    """From --dataset-path, or from a short poem of our own."""
    profile = source.profile
    lines = _lines(source)
    input_tokens = profile.input_len or profile.sonnet_input_len
    if profile.sonnet_prefix_len > input_tokens:
        raise BadOption("--sonnet-prefix-len is larger than --sonnet-input-len")
    costs = {line: source.vocabulary.count(line) for line in lines}
    task = source.vocabulary.count(TASK)
    prefix = _as_many(iter(lines * (1 + profile.sonnet_prefix_len)), profile.sonnet_prefix_len - task, costs)
    left = input_tokens - task - sum(costs[line] for line in prefix)
    if left < max(costs.values()):
        raise BadOption("--sonnet-input-len leaves no room for a line behind the prefix")
    prompts = []
    for _ in range(source.count):
        chosen = _as_many(iter(lambda: source.draw.choice(lines), None), left, costs)
        text = TASK + "".join(prefix) + "".join(chosen)
        output = profile.output_len or profile.sonnet_output_len
        prompts.append(Prompt(text=text, output_tokens=output, prompt_tokens=source.vocabulary.count(text)))
    return prompts


def _as_many(lines: Iterator[str], budget: int, costs: Mapping[str, int]) -> list[str]:
    """Lines, in turn, for as long as they fit into `budget` tokens."""
    taken = []
    for line in lines:
        budget -= costs[line]
        if budget < 0:
            break
        taken.append(line)
    return taken


def _lines(source: Source) -> list[str]:
    path = source.path if source.profile.dataset_path else OWN_LINES
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"--dataset-path: {error}") from None
    return [line for line in lines if line.strip()]
