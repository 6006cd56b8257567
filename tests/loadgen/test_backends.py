"""Every wire protocol: what is read out of an answer as its servers write it, whole, cut up or cut off."""

import json
from typing import Any

import pytest

from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.exchange import Exchange, RequestOptions
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import ErrorClass, RequestRecord
from tests.loadgen.answers import ANSWERS, AUDIO, TEXT, WHOLE_COMPLETION, completion, delta, read, sse, used


def test_every_back_end_has_an_answer_here() -> None:
    assert set(ANSWERS) == set(BACKENDS)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_answer(name: str) -> None:
    answer = ANSWERS[name]
    backend = BACKENDS[name]
    backend.body(answer.prompt, RequestOptions(model="m"))
    streamed = bool(answer.chunks)
    content_type = "text/event-stream" if streamed else "application/json"
    record = read(backend, answer.frames, prompt=answer.prompt, content_type=content_type)
    assert (record.error, record.error_text) == (ErrorClass.NONE, "")
    assert record.text == answer.text
    assert [(chunk.time, chunk.tokens) for chunk in record.chunks] == answer.chunks
    assert (record.prompt_tokens, record.prompt_tokens_source) == answer.input
    assert (record.output_tokens or 0, record.output_tokens_source) == answer.output
    assert record.finish_reason == answer.finish
    assert (record.sent, record.headers, record.done) == (0.0, 0.5, float(len(answer.frames)))
    assert record.bytes_in == len("".join(answer.frames).encode())


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if answer.chunks])
def test_an_answer_that_is_cut_anywhere_has_the_same_chunks(name: str) -> None:
    answer = ANSWERS[name]
    data = "".join(answer.frames)
    record = read(BACKENDS[name], list(data), prompt=answer.prompt)
    assert [chunk.tokens for chunk in record.chunks] == [tokens for _, tokens in answer.chunks]
    begins = [len("".join(answer.frames[: int(time) - 1])) + 1 for time, _ in answer.chunks]
    assert [chunk.time for chunk in record.chunks] == begins, "each arrived with the first byte of its event"
    assert (record.text, record.error) == (answer.text, ErrorClass.NONE)


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if answer.chunks])
def test_an_answer_that_comes_at_once_has_the_same_chunks(name: str) -> None:
    answer = ANSWERS[name]
    record = read(BACKENDS[name], ["".join(answer.frames)], prompt=answer.prompt)
    assert [(chunk.time, chunk.tokens) for chunk in record.chunks] == [(1.0, tokens) for _, tokens in answer.chunks]


@pytest.mark.parametrize("name", [name for name, one in BACKENDS.items() if ANSWERS[name].chunks and one.says_end])
def test_a_stream_without_its_end_was_cut_off(name: str) -> None:
    answer = ANSWERS[name]
    record = read(BACKENDS[name], answer.frames[:1], prompt=answer.prompt)
    assert record.error is ErrorClass.STREAM_TRUNCATED
    record = read(BACKENDS[name], [*answer.frames[:1], answer.frames[1][:12]], prompt=answer.prompt)
    assert record.error is ErrorClass.STREAM_TRUNCATED


def test_a_finish_reason_is_an_end_too() -> None:
    assert read(BACKENDS["openai"], sse(completion("a"), completion("b", "stop"))).error is ErrorClass.NONE


def test_an_answer_that_was_not_streamed_has_no_chunks() -> None:
    record = read(BACKENDS["openai"], WHOLE_COMPLETION, content_type="application/json")
    assert (record.text, record.chunks, record.output_tokens) == (" upon a time", [], 4)
    message = {"message": {"content": "Hi", "reasoning_content": "Hm"}, "finish_reason": "stop"}
    assert read(BACKENDS["openai-chat"], [json.dumps({"choices": [message]})]).text == "HmHi"
    assert read(BACKENDS["deepspeed-mii"], ['{"text": ["Hi"]}'], content_type="application/json").text == "Hi"
    assert read(BACKENDS["openai-audio"], ['{"text": "Hi"}'], prompt=AUDIO).text == "Hi"


def test_what_the_exchange_failed_with_stays() -> None:
    record = read(BACKENDS["openai"], sse(completion("a")), error=ErrorClass.TIMEOUT_TOTAL)
    assert (record.error, len(record.chunks)) == (ErrorClass.TIMEOUT_TOTAL, 1)


def test_a_refused_request_is_not_parsed() -> None:
    exchange = Exchange(sent=0.0, done=1.0, http_status=429, error=ErrorClass.HTTP_429, pieces=[(1.0, b"<html>")])
    record = RequestRecord(index=0)
    read_exchange(BACKENDS["openai"], TEXT, exchange, record)
    assert (record.error, record.output_tokens, record.bytes_in) == (ErrorClass.HTTP_429, None, 6)


def test_no_content_is_no_success() -> None:
    record = read(BACKENDS["openai-chat"], sse(delta(role="assistant"), delta("", finish="stop"), "[DONE]"))
    assert (record.error, record.chunks) == (ErrorClass.EMPTY, [])
    assert read(BACKENDS["openai"], [": ping\n\n", *sse("[DONE]")]).error is ErrorClass.EMPTY
    assert read(BACKENDS["openai-embeddings"], ['{"data": []}'], content_type="application/json").error


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ({"error": "no engine"}, ErrorClass.HTTP_5XX),
        ({"error": {"message": "no engine", "code": "engine_gone"}}, ErrorClass.HTTP_5XX),
        ({"error": {"message": "no engine", "code": 429}}, ErrorClass.HTTP_429),
        ({"error": {"message": "no engine", "code": 400}}, ErrorClass.HTTP_4XX),
        ({"object": "error", "message": "no engine"}, ErrorClass.HTTP_5XX),
        ("no engine", ErrorClass.PARSE),
        ({"choices": ["no engine"]}, ErrorClass.PARSE),
        ([], ErrorClass.PARSE),
        (completion(["no engine"]), ErrorClass.PARSE),
        (used("no engine", 1), ErrorClass.PARSE),
        (used(1, "no engine"), ErrorClass.PARSE),
        pytest.param("[" * 10_000, ErrorClass.PARSE, id="nested"),
    ],
)
def test_a_failure_under_status_200(frame: Any, error: ErrorClass) -> None:
    record = read(BACKENDS["openai"], sse(completion("a"), frame, "[DONE]"))
    assert record.error is error
    assert "no engine" in record.error_text or frame in ([], "[" * 10_000)
    assert len(record.chunks) == 1, "what came before is kept"
