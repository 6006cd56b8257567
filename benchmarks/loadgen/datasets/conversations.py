"""Conversations of several turns: from a JSON list of {id, messages}, or made of random words by a generator's file."""

from pathlib import Path
from random import Random
from typing import Any

import msgspec

from benchmarks.loadgen.datasets.distributions import sampler
from benchmarks.loadgen.datasets.source import Source, read_json
from benchmarks.loadgen.declare import BadOption

GENERATOR = "generate_conversations"


class Turn(msgspec.Struct, frozen=True):
    """What the user says, and how many tokens the answer should have (None: as the server likes)."""

    text: str
    output_tokens: int | None = None
    min_output_tokens: int | None = None


class Conversation(msgspec.Struct, frozen=True):
    id: str
    turns: list[Turn]
    system: str = ""


def load(source: Source) -> list[Conversation]:
    """From the file: conversations in the order of the seed, or the generator's if it is such a file."""
    rows = read_json(source.path)
    if isinstance(rows, dict) and rows.get("filetype") == GENERATOR:
        return _generate(source, rows)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadOption(f"--dataset-path: {source.path} is neither a list of conversations nor a {GENERATOR} file")
    found = [_conversation(source, number, row) for number, row in enumerate(rows)]
    return source.shuffled([conversation for conversation in found if conversation.turns])


def answers(path: Path) -> dict[str, list[str]]:
    """The assistant's messages of each conversation of a file, by its id. Raises BadOption for a file without."""
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadOption(f"--dataset-path: {path} is no list of conversations, whose answers could be verified")
    return {
        str(row.get("id", number)): [
            str(message.get("content") or "")
            for message in row.get("messages") or []
            if message.get("role") == "assistant"
        ]
        for number, row in enumerate(rows)
    }


def synthesise(source: Source) -> list[Conversation]:
    """By --conversation-spec, or by --num-turns, --random-input-len and --random-output-len alike in every turn."""
    profile = source.profile
    spec = {
        "num_conversations": profile.num_conversations,
        "prompt_input": {
            "num_turns": 2 * profile.num_turns,
            "num_tokens": profile.input_len or profile.random_input_len,
            "common_prefix_num_tokens": profile.random_prefix_len,
        },
        "prompt_output": {"num_tokens": profile.output_len or profile.random_output_len},
    }
    return _generate(source, {**spec, **profile.conversation_spec})


def _generate(source: Source, spec: dict[str, Any]) -> list[Conversation]:
    asked, answered = spec.get("prompt_input"), spec.get("prompt_output")
    if not isinstance(asked, dict) or not isinstance(answered, dict):
        raise BadOption("--conversation-spec: needs the objects prompt_input and prompt_output")
    messages = sampler("prompt_input.num_turns", asked.get("num_turns"))
    tokens = sampler("prompt_input.num_tokens", asked.get("num_tokens"))
    prefix = sampler("prompt_input.prefix_num_tokens", asked.get("prefix_num_tokens", 0))
    common = sampler("prompt_input.common_prefix_num_tokens", asked.get("common_prefix_num_tokens", 0))
    output = sampler("prompt_output.num_tokens", answered.get("num_tokens"))
    draw, words = source.draw, source.vocabulary.words
    beginning = words(common(draw), draw)

    def turns(draw: Random) -> list[Turn]:
        # The generator's file counts messages: a turn is one of the user and one of the assistant.
        made = [Turn(words(tokens(draw), draw), output(draw)) for _ in range(max(1, messages(draw) // 2))]
        first = Turn(beginning + words(prefix(draw), draw) + made[0].text, made[0].output_tokens)
        return [first, *made[1:]]

    count = int(spec.get("num_conversations", source.count))
    return [Conversation(f"synthetic-{index}", turns(draw)) for index in range(count)]


def _conversation(source: Source, number: int, row: dict[str, Any]) -> Conversation:
    """The user's messages are the turns; an assistant's message tells how long the answer to its turn should be."""
    messages = row.get("messages")
    if not isinstance(messages, list):
        raise BadOption(f"--dataset-path: {source.path}, conversation {number}: messages is no list")
    fixed = source.profile.output_len
    system, turns = "", list[Turn]()
    for message in messages:
        role, text = message.get("role"), str(message.get("content") or "")
        if role == "system" and not turns:
            system = text
        elif role == "user":
            turns.append(Turn(text, fixed))
        elif role == "assistant" and turns and fixed is None:
            turns[-1] = Turn(turns[-1].text, max(1, source.vocabulary.count(text)))
    return Conversation(str(row.get("id", number)), turns, system)
