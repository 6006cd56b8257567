"""What of an answer is content, and how its tokens are counted."""

from typing import Any

import pytest

from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.exchange import Exchange
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import Chunk, ErrorClass, RequestRecord
from tests.loadgen.answers import CHUNKS, IDS, TEXT, TOKENIZER, USAGE, delta, read, sse, used


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_told_apart(field: str) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 6}}
    frames = sse(delta(**{field: "Hm"}), delta("Yes", finish="stop"), used(9, 3, **details), "[DONE]")
    record = read(BACKENDS["openai-chat"], frames)
    assert record.chunks == [Chunk(1.0, None, reasoning=True), Chunk(2.0, None)]
    assert (record.reasoning_tokens, record.cached_tokens) == (2, 6)


def test_a_tool_call_is_content() -> None:
    calls = [{"index": 0, "function": {"name": "add", "arguments": '{"a": 1}'}}]
    record = read(BACKENDS["openai-chat"], sse(delta(tool_calls=calls), delta("", finish="tool_calls"), "[DONE]"))
    assert (record.error, len(record.chunks), record.text) == (ErrorClass.NONE, 1, 'add{"a": 1}')


def test_token_ids_come_before_counted_chunks_and_after_usage() -> None:
    def with_ids(text: str, *ids: int) -> dict[str, Any]:
        return {"choices": [{"index": 0, "text": text, "token_ids": ids, "logprobs": {"tokens": ["x"]}}]}

    frames = sse(with_ids("ab", 1, 2), with_ids("", 3), with_ids("c", 4))
    record = read(BACKENDS["openai"], [*frames, *sse("[DONE]")])
    assert (record.output_tokens, record.output_tokens_source) == (4, IDS)
    assert [chunk.tokens for chunk in record.chunks] == [2, 2]
    record = read(BACKENDS["openai"], [*frames, *sse(used(1, 5), "[DONE]")])
    assert (record.output_tokens, record.output_tokens_source) == (5, USAGE)
    assert [chunk.tokens for chunk in record.chunks] == [2, 2]


def test_an_event_with_thoughts_and_text_counts_its_tokens_once() -> None:
    both = {"delta": {"content": "Yes", "reasoning_content": "Hm"}, "token_ids": [1, 2, 3], "finish_reason": "stop"}
    record = read(BACKENDS["openai-chat"], sse({"choices": [both]}, "[DONE]"))
    assert (record.output_tokens, record.output_tokens_source) == (3, IDS)


def test_log_probabilities_count_the_tokens_of_a_chunk() -> None:
    frame = {"choices": [{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}}]}
    record = read(BACKENDS["openai"], sse(frame, "[DONE]"))
    assert (record.output_tokens, record.output_tokens_source, record.chunks) == (2, CHUNKS, [Chunk(1.0, 2)])


def test_a_tokenizer_comes_before_an_estimate() -> None:
    exchange = Exchange(sent=0.0, done=1.0, http_status=200, pieces=[(1.0, b'data: {"text_output": "a b c"}\n\n')])
    record = RequestRecord(index=0)
    read_exchange(BACKENDS["tensorrt-llm"], TEXT, exchange, record, count_tokens=lambda text: len(text.split()))
    assert (record.output_tokens, record.output_tokens_source) == (3, TOKENIZER)
    assert (record.prompt_tokens, record.prompt_tokens_source) == (1, TOKENIZER)
    assert record.text is None, "it was not asked for"


def test_the_choices_of_a_batch_are_streams_of_their_own() -> None:
    both = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
    record = read(BACKENDS["rwkv"], sse(both, delta("c", index=1), "[DONE]"))
    assert [(chunk.time, chunk.choice) for chunk in record.chunks] == [(1.0, 0), (1.0, 1), (2.0, 1)]
