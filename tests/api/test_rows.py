"""What is between the engines' tokens and the endpoints' choices of text."""

import random

import pytest

from inference.api.rows.choices import ChoiceWriter
from inference.api.rows.generation import joined
from inference.api.rows.request import GenerationRequest, Row, TooManyTokens, describe_rows
from inference.bus.messages import RowOutput, Sampling, TokenLogprobs
from inference.text.tokenizer import get_tokenizer

TEXT = "The fox 你好 says:\nUser: no more of this"


def outputs(row: int, finish: str) -> list[tuple[int, RowOutput]]:
    """One token a step, and the end with the last one."""
    tokens = get_tokenizer().encode(TEXT)
    steps = [RowOutput(row, place, [token], logprobs=[TokenLogprobs(-place, [])]) for place, token in enumerate(tokens)]
    steps[0].cached_tokens, steps[-1].finish, steps[-1].stop_id = 7, finish, 5 if finish == "stop" else -1
    return [(row, step) for step in steps]


def request_of(rows: int, **fields) -> GenerationRequest:
    return GenerationRequest(
        rows=[Row(prompt=[1], sampling=Sampling()) for _ in range(rows)],
        model="m",
        endpoint="e",
        request_id="r",
        max_tokens=99,
        stop_ids=[],
        **fields,
    )


def read(row: int, batches: list[list[tuple[int, RowOutput]]], stops: list[str]) -> tuple:
    writer = ChoiceWriter(row, request_of(2, stop_strings=stops, logprobs=0))
    deltas = []
    for index, output in (pair for batch in batches for pair in joined(batch)):
        if index == row and not writer.ended:
            deltas += filter(None, [writer.write(output)])
    last = deltas[-1]
    tokens = [token for delta in deltas for token in delta.tokens]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or []]
    return "".join(delta.text for delta in deltas), tokens, logprobs, last.finish_reason, last.stop_reason


def in_batches(finish: str, draw: random.Random) -> list[list[tuple[int, RowOutput]]]:
    """The steps of two rows, several at a time."""
    steps = [pair for pairs in zip(outputs(0, finish), outputs(1, finish), strict=True) for pair in pairs]
    batches = []
    while steps:
        size = draw.randint(1, 9)
        batches.append(steps[:size])
        steps = steps[size:]
    return batches


@pytest.mark.parametrize("stops", [[], ["\nUser:"], ["好"]])
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_several_steps_at_once_are_read_as_one_after_another(stops, finish):
    draw = random.Random(5)
    for row in (0, 1) * 10:
        one_by_one = [[pair] for pair in outputs(row, finish)]
        assert read(row, in_batches(finish, draw), stops) == read(row, one_by_one, stops)


async def test_a_grammar_that_is_too_large_for_all_rows_together_is_refused():
    request = request_of(1024, grammar="x" * 10**6)
    with pytest.raises(TooManyTokens, match="all grammars together, got 1024000000"):
        await describe_rows(request)
