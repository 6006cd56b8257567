"""Every wire protocol: what it is sent, and what is read out of an answer as its servers write it."""

import base64
import csv
import json
import wave
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, StringIO
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, NamedTuple

import pytest

from benchmarks.loadgen import audio, exports, runner
from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.backends.template import load_template
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Backend, Exchange, Prompt, RequestOptions
from benchmarks.loadgen.exports.vllm_json import to_vllm
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import Chunk, ClientHealth, ErrorClass, RequestRecord, RunResult, TokenSource
from tests.loadgen.mock_server import running_mock_server

TEXT = Prompt(text="Once", output_tokens=4)
AUDIO = Prompt(
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}}
            ],
        }
    ]
)
USAGE, IDS, CHUNKS, TOKENIZER, ESTIMATE = (
    TokenSource.USAGE,
    TokenSource.IDS,
    TokenSource.CHUNKS,
    TokenSource.TOKENIZER,
    TokenSource.ESTIMATE,
)


def sse(*events: Any) -> list[str]:
    return [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]


def read(
    backend: Backend,
    frames: list[str],
    *,
    prompt: Prompt = TEXT,
    content_type: str = "text/event-stream",
    error: ErrorClass = ErrorClass.NONE,
) -> RequestRecord:
    """The record of an answer whose frames arrive at 1, 2, 3, ... seconds."""
    pieces = [(float(at), frame.encode()) for at, frame in enumerate(frames, 1)]
    exchange = Exchange(
        sent=0.0,
        headers=0.5,
        done=float(len(frames)),
        http_status=200,
        content_type=content_type,
        pieces=pieces,
        error=error,
    )
    record = RequestRecord(index=0)
    read_exchange(backend, prompt, exchange, record, keep_text=True)
    return record


def completion(text: Any = "", finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **fields}


def delta(content: str = "", index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": content, **fields}, "finish_reason": finish}]}


def used(prompt: Any, output: Any, **details: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}


class Answer(NamedTuple):
    frames: list[str]
    text: str
    chunks: list[tuple[float, int | None]]
    input: tuple[int, TokenSource]
    output: tuple[int, TokenSource]
    finish: str | None = None
    prompt: Prompt = TEXT


PLAIN_COMPLETION = Answer(
    sse(completion(" upon"), completion(" a time"), completion("", "length"), used(3, 5), "[DONE]"),
    " upon a time",
    [(1.0, None), (2.0, None)],
    (3, USAGE),
    (5, USAGE),
    "length",
)
CONTINUOUS_COMPLETION = Answer(
    sse(
        completion(" upon", usage={"prompt_tokens": 3, "completion_tokens": 1}),
        completion("", usage={"prompt_tokens": 3, "completion_tokens": 2}),  # half a character
        completion(" a time", usage={"prompt_tokens": 3, "completion_tokens": 4}),
        completion("", "stop", usage={"prompt_tokens": 3, "completion_tokens": 5}),
        used(3, 5),
        "[DONE]",
    ),
    " upon a time",
    [(1.0, 1), (3.0, 3)],
    (3, USAGE),
    (5, USAGE),
    "stop",
)
PLAIN_CHAT = Answer(
    sse(delta(role="assistant"), delta("Hi"), delta(" there"), delta("", finish="stop"), used(9, 3), "[DONE]"),
    "Hi there",
    [(2.0, None), (3.0, None)],
    (9, USAGE),
    (3, USAGE),
    "stop",
)
NATIVE = Answer(
    sse(delta(" upon"), delta(" a time"), "[DONE]"),
    " upon a time",
    [(1.0, None), (2.0, None)],
    (1, ESTIMATE),
    (3, ESTIMATE),
)
WHOLE_COMPLETION = [
    json.dumps({**completion(" upon a time", "length"), "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
]
EMBEDDING = Answer(
    [json.dumps({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}})],
    "",
    [],
    (3, USAGE),
    (0, TokenSource.NONE),
)
RANKING = Answer(
    [json.dumps({"results": [{"index": 0, "relevance_score": 0.9}], "usage": {"prompt_tokens": 8}})],
    "",
    [],
    (8, USAGE),
    (0, TokenSource.NONE),
    prompt=Prompt(text="query\ndocument"),
)


def generated(text: str, **fields: Any) -> dict[str, Any]:
    return {"token": {"id": 5, "text": text, **fields}}


ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("openai", "lmdeploy", "scalellm", "sglang", "llama.cpp", "truss"), PLAIN_COMPLETION),
    "vllm": CONTINUOUS_COMPLETION,
    "openai-chat": PLAIN_CHAT,
    "vllm-chat": PLAIN_CHAT,
    "deepspeed-mii": Answer(WHOLE_COMPLETION, " upon a time", [], (3, USAGE), (4, USAGE), "length"),
    "openai-audio": PLAIN_CHAT._replace(prompt=AUDIO),
    **dict.fromkeys(
        (
            *("openai-embeddings", "openai-embeddings-chat", "openai-embeddings-clip", "openai-embeddings-vlm2vec"),
            *("infinity-embeddings", "infinity-embeddings-clip", "vllm-pooling"),
        ),
        EMBEDDING,
    ),
    "vllm-rerank": RANKING,
    **dict.fromkeys(("rwkv", "rwkv-batch", "rwkv-v2", "rwkv-v3", "rwkv-big-batch", "rwkv-fim", "rwkv-state"), NATIVE),
    "rwkv-translate": Answer(
        [json.dumps({"translations": [{"detected_source_lang": "de", "text": text} for text in ("one ", "two")]})],
        "one two",
        [],
        (1, ESTIMATE),
        (2, ESTIMATE),
    ),
    "tgi": Answer(
        [
            *sse(generated(" upon", special=False)),
            'data:{"token": {"text": " a", "special": false}}\n\n',
            *sse(
                {
                    **generated("</s>", special=True),
                    "generated_text": " upon a",
                    "details": {"generated_tokens": 3, "finish_reason": "eos_token"},
                }
            ),
        ],
        " upon a",
        [(1.0, 1), (2.0, 1)],
        (1, ESTIMATE),
        (3, USAGE),
        "eos_token",
    ),
    "lightllm": Answer(
        sse(
            {**generated(" upon", count_output_tokens=1, prompt_tokens=3), "finished": False},
            {**generated(" a", count_output_tokens=2, prompt_tokens=3), "finished": True, "finish_reason": "length"},
        ),
        " upon a",
        [(1.0, 1), (2.0, 1)],
        (3, USAGE),
        (2, USAGE),
        "length",
    ),
    "amsv2": Answer(
        sse(
            generated(" upon"),
            {**generated(" a"), "generated_text": " upon a", "details": {"generated_tokens": 2}},
        ),
        " upon a",
        [(1.0, 1), (2.0, 1)],
        (1, ESTIMATE),
        (2, USAGE),
    ),
    "tensorrt-llm": Answer(
        sse({"text_output": " upon"}, {"text_output": " upon"}),
        " upon upon",
        [(1.0, None), (2.0, None)],
        (1, ESTIMATE),
        (3, ESTIMATE),
    ),
    "sglang-native": Answer(
        sse(
            {"text": " up", "meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2}},
            {"text": " upon a", "meta_info": {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 2}},
            {
                "text": " upon a",
                "meta_info": {"prompt_tokens": 3, "completion_tokens": 5, "finish_reason": {"type": "stop"}},
            },
            "[DONE]",
        ),
        " upon a",
        [(1.0, 1), (2.0, 3)],
        (3, USAGE),
        (5, USAGE),
        "stop",
    ),
    "llama.cpp-native": Answer(
        [
            *sse({"content": " upon", "tokens": [7, 8], "stop": False}),
            ": ping\n\n",
            *sse(
                {"content": " a", "tokens": [9], "stop": False},
                {
                    "content": "",
                    "tokens": [],
                    "stop": True,
                    "stop_type": "limit",
                    "tokens_evaluated": 3,
                    "timings": {"prompt_n": 3, "predicted_n": 3},
                },
            ),
        ],
        " upon a",
        [(1.0, 2), (3.0, 1)],
        (3, USAGE),
        (3, USAGE),
        "limit",
    ),
}


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
    ],
)
def test_a_failure_under_status_200(frame: Any, error: ErrorClass) -> None:
    record = read(BACKENDS["openai"], sse(completion("a"), frame, "[DONE]"))
    assert record.error is error
    assert "no engine" in record.error_text or frame == []
    assert len(record.chunks) == 1, "what came before is kept"


def test_no_content_is_no_success() -> None:
    record = read(BACKENDS["openai-chat"], sse(delta(role="assistant"), delta("", finish="stop"), "[DONE]"))
    assert (record.error, record.chunks) == (ErrorClass.EMPTY, [])
    assert read(BACKENDS["openai"], [": ping\n\n", *sse("[DONE]")]).error is ErrorClass.EMPTY
    assert read(BACKENDS["openai-embeddings"], ['{"data": []}'], content_type="application/json").error


def test_what_the_exchange_failed_with_stays() -> None:
    record = read(BACKENDS["openai"], sse(completion("a")), error=ErrorClass.TIMEOUT_TOTAL)
    assert (record.error, len(record.chunks)) == (ErrorClass.TIMEOUT_TOTAL, 1)


def test_a_refused_request_is_not_parsed() -> None:
    exchange = Exchange(sent=0.0, done=1.0, http_status=429, error=ErrorClass.HTTP_429, pieces=[(1.0, b"<html>")])
    record = RequestRecord(index=0)
    read_exchange(BACKENDS["openai"], TEXT, exchange, record)
    assert (record.error, record.output_tokens, record.bytes_in) == (ErrorClass.HTTP_429, None, 6)


FULL = RequestOptions(
    model="m", ignore_eos=True, logprobs=2, sampling={"temperature": 0.5}, extra_body={"seed": 7, "user": None}
)
BODIES = [
    (
        "openai",
        Prompt(text="Once", suffix="end", output_tokens=4),
        {
            "model": "m",
            "prompt": "Once",
            "suffix": "end",
            "max_tokens": 4,
            "ignore_eos": True,
            "logprobs": 2,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "vllm",
        Prompt(token_ids=[1, 2], output_tokens=4),
        {
            "model": "m",
            "prompt": [1, 2],
            "max_tokens": 4,
            "ignore_eos": True,
            "logprobs": 2,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    (
        "openai-chat",
        TEXT,
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Once"}],
            "max_completion_tokens": 4,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 2,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "rwkv-fim",
        Prompt(text="Once", suffix="end", output_tokens=4),
        {
            "model": "m",
            "prefix": ["Once"],
            "suffix": ["end"],
            "max_tokens": 4,
            "ignore_eos": True,
            "stop_tokens": [],
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "rwkv-state",
        Prompt(text="Once", session="s1", output_tokens=4),
        {
            "model": "m",
            "contents": ["Once"],
            "session_id": "s1",
            "max_tokens": 4,
            "ignore_eos": True,
            "stop_tokens": [],
            "stream_options": {"include_usage": True},
        },
    ),
]


@pytest.mark.parametrize(("name", "prompt", "expected"), BODIES, ids=[name for name, *_ in BODIES])
def test_a_body(name: str, prompt: Prompt, expected: dict[str, Any]) -> None:
    body = BACKENDS[name].body(prompt, FULL)
    assert body == {**expected, "stream": True, "temperature": 0.5, "seed": 7}
    data, content_type = BACKENDS[name].encode(body)
    assert (json.loads(data), content_type) == (body, "application/json")


BATCH = Prompt(batch=[Prompt(text="Once", suffix="end"), Prompt(text="Twice")], output_tokens=4)
BATCHED = [
    ("openai", {"prompt": ["Once", "Twice"]}),
    ("openai-embeddings", {"input": ["Once", "Twice"]}),
    ("rwkv-batch", {"contents": ["Once", "Twice"]}),
    ("rwkv-fim", {"prefix": ["Once", "Twice"], "suffix": ["end", ""]}),
    ("rwkv-translate", {"text_list": ["Once", "Twice"], "source_lang": "auto", "target_lang": "fr"}),
]


@pytest.mark.parametrize(("name", "fields"), BATCHED, ids=[name for name, _ in BATCHED])
def test_several_prompts_in_one_request(name: str, fields: dict[str, Any]) -> None:
    options = RequestOptions(extra_body={"target_lang": "fr"})
    body = BACKENDS[name].body(BATCH, options)
    assert {field: body[field] for field in fields} == fields
    assert body.get("max_tokens") == (None if name in ("openai-embeddings", "rwkv-translate") else 4)


@pytest.mark.parametrize("name", ["openai-chat", "tgi", "vllm-rerank"])
def test_a_back_end_of_single_prompts_refuses_a_batch(name: str) -> None:
    with pytest.raises(ValueError, match=f"the back end {name} sends one text, not a batch"):
        BACKENDS[name].body(BATCH, RequestOptions())


def test_the_streams_of_a_batch_have_times_of_their_own() -> None:
    frames = sse(delta("a", index=0), delta("b", index=1), delta("c", index=1), delta("d", index=0, finish="stop"))
    record = read(BACKENDS["rwkv-batch"], [*frames, *sse("[DONE]")], prompt=BATCH)
    rows = csv.DictReader(StringIO(exports.export(run_of(record), "streams").decode()))
    times = [(row["index"], row["choice"], row["ttft_ms"], row["e2el_ms"], row["chunks"]) for row in rows]
    assert times == [("0", "0", "1000.0", "4000.0", "2"), ("0", "1", "2000.0", "3000.0", "2")]
    assert (record.prompt_tokens, record.prompt_tokens_source) == (3, ESTIMATE)  # all of the batch


def run_of(record: RequestRecord) -> RunResult:
    return RunResult(
        run_id="r",
        kind="serve",
        started_at="2026-11-20T10:30:05+00:00",
        duration=1.0,
        cancelled=False,
        profile={},
        environment={},
        server={},
        health=ClientHealth(verdict="ok", reasons=[]),
        rate_changes=[],
        summary={},
        records=[record],
    )


def test_a_plain_prompt_becomes_a_message_where_embeddings_are_made_of_messages() -> None:
    body = BACKENDS["openai-embeddings-chat"].body(TEXT, RequestOptions(model="m"))
    assert body == {"model": "m", "messages": [{"role": "user", "content": "Once"}]}
    assert BACKENDS["infinity-embeddings"].default_endpoint == "/embeddings"


@pytest.mark.parametrize("name", ["openai", "openai-chat", "rwkv-batch"])
def test_an_exact_length_is_asked_for_from_both_sides(name: str) -> None:
    assert BACKENDS[name].body(TEXT, RequestOptions(ignore_eos=True, exact_length=True))["min_tokens"] == 4
    least = Prompt(text="Once", output_tokens=4, min_output_tokens=2)
    assert BACKENDS[name].body(least, RequestOptions())["min_tokens"] == 2
    assert "min_tokens" not in BACKENDS[name].body(TEXT, RequestOptions(ignore_eos=True))


class Transcriber(BaseHTTPRequestHandler):
    """Answers every upload with one word, and remembers where it came to."""

    paths: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.paths.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = b'{"text": "word", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


def wav(seconds: float) -> str:
    data = BytesIO()
    with wave.open(data, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * round(8000 * seconds)))
    return base64.b64encode(data.getvalue()).decode()


def spoken(data: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": data}}]}]}


def test_audio_is_measured_against_its_own_length(tmp_path: Path) -> None:
    path = tmp_path / "audio.jsonl"
    path.write_text("".join(json.dumps(spoken(wav(seconds))) + "\n" for seconds in (1.5, 2.5)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Transcriber) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        values = {"backend": "openai-audio", "port": server.server_port, "model": "m", "stream": False}
        data = {
            "dataset_name": "custom",
            "dataset_path": str(path),
            "num_prompts": 2,
            "tokenizer": "none",
            "workers": 2,
        }
        result = runner.run(checked_profile(values | data), kind="serve")
        server.shutdown()
    assert result.summary["requests"]["completed"] == 2
    fields = to_vllm(result, detailed=False)
    assert fields["rtfx"] == pytest.approx(4.0 / fields["duration"])
    assert fields["total_input_tokens"] == 18


def test_the_server_profiles_the_load_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "audio.jsonl"
    path.write_text(json.dumps(spoken(wav(0.1))))
    values = {"backend": "openai-audio", "model": "m", "stream": False, "profile": True, "num_warmups": 1}
    data = {"dataset_name": "custom", "dataset_path": str(path), "num_prompts": 1, "tokenizer": "none"}
    with ThreadingHTTPServer(("127.0.0.1", 0), Transcriber) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        Transcriber.paths.clear()
        result = runner.run(checked_profile(values | data | {"port": server.server_port}), kind="serve")
        server.shutdown()
    upload = "/v1/audio/transcriptions"
    assert Transcriber.paths == [upload, "/start_profile", upload, "/stop_profile"]
    assert result.environment["profiler"] == "stopped"
    with running_mock_server() as url, pytest.raises(BadOption, match=f"--profile: {url}/start_profile answered 500"):
        runner.run(checked_profile({**values, **data, "base_url": [url], "num_warmups": 0}), kind="serve")


def test_audio_of_unknown_length_makes_no_figure() -> None:
    assert audio.seconds([AUDIO]) != audio.seconds([AUDIO])  # nan: no WAV
    assert audio.seconds([TEXT]) == 0.0
    assert audio.figures(audio.seconds([AUDIO]), 2.0) == {}
    assert audio.figures(0.0, 2.0) == {}


def test_a_sound_is_no_text_to_count() -> None:
    record = read(BACKENDS["openai-audio"], ['{"text": "Hi"}'], prompt=AUDIO, content_type="application/json")
    assert record.prompt_tokens == 0


def test_bodies_with_parameters_of_their_own() -> None:
    tgi = BACKENDS["tgi"].body(Prompt(text="Once", prompt_tokens=1, output_tokens=4), FULL)
    assert tgi["inputs"] == "Once" and tgi["seed"] == 7
    assert tgi["parameters"] == {
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.99,
        "max_new_tokens": 4,
        "ignore_eos_token": True,
        "truncate": 1,
    }
    lightllm = BACKENDS["lightllm"].body(TEXT, FULL)["parameters"]
    assert (lightllm["min_new_tokens"], lightllm["ignore_eos"]) == (4, True)
    sglang = BACKENDS["sglang-native"].body(Prompt(token_ids=[1]), FULL)
    assert (sglang["input_ids"], sglang["sampling_params"]) == ([1], {"ignore_eos": True, "temperature": 0.5})
    assert BACKENDS["tensorrt-llm"].body(TEXT, FULL)["min_length"] == 4
    assert BACKENDS["llama.cpp-native"].body(TEXT, FULL)["cache_prompt"] is False
    assert BACKENDS["deepspeed-mii"].body(TEXT, FULL)["stream"] is False
    rerank = BACKENDS["vllm-rerank"].body(Prompt(text="q\na\nb"), RequestOptions())
    assert rerank == {"query": "q", "documents": ["a", "b"]}


def test_the_extra_body_has_the_last_word() -> None:
    options = RequestOptions(sampling={"max_tokens": 5}, extra_body={"max_tokens": 6, "contents": ["a", "b"]})
    body = BACKENDS["rwkv-batch"].body(TEXT, options)
    assert (body["max_tokens"], body["contents"]) == (6, ["a", "b"])


@pytest.mark.parametrize(
    ("name", "prompt", "complaint"),
    [
        ("openai", Prompt(messages=[]), "text or token ids, not messages"),
        ("openai-chat", Prompt(token_ids=[1]), "text, not token ids"),
        ("rwkv", Prompt(messages=[]), "text, not messages"),
        ("llama.cpp-native", Prompt(messages=[]), "text or token ids"),
        ("openai-audio", TEXT, "input_audio"),
        ("vllm-rerank", TEXT, "documents"),
    ],
)
def test_a_prompt_that_a_protocol_cannot_carry(name: str, prompt: Prompt, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"prompt: the back end {name} .*{complaint}"):
        BACKENDS[name].body(prompt, RequestOptions())


def test_an_upload() -> None:
    backend = BACKENDS["openai-audio"]
    data, content_type = backend.encode(backend.body(AUDIO, RequestOptions(model="m")))
    form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + data)
    parts = {str(part.get_param("name", header="Content-Disposition")): part for part in form.get_payload()}
    fields = {name: part.get_payload(decode=True) for name, part in parts.items()}
    assert fields == {
        "model": b"m",
        "language": b"en",
        "stream": b"true",
        "stream_include_usage": b"true",
        "stream_continuous_usage_stats": b"true",
        "file": b"RIFF",
    }
    assert parts["file"].get_filename() == "audio.wav"


TEMPLATE = {
    "endpoint": "/generate",
    "headers": {"x-tier": "gold"},
    "body": {"q": ["<$prompt>"], "n": "$max_tokens", "seed": "$suffix", "opts": {"stream": "$stream", "m": "$model"}},
    "text": "out.0.text",
    "output_tokens": "out.0.n",
    "finish_reason": "why",
}


def test_a_template(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text(json.dumps(TEMPLATE))
    backend = load_template(path)
    assert (backend.default_endpoint, dict(backend.headers)) == ("/generate", {"x-tier": "gold"})
    body = backend.body(TEXT, RequestOptions(model="m", extra_body={"x": 1}))
    assert body == {"q": ["<Once>"], "n": 4, "opts": {"stream": True, "m": "m"}, "x": 1}
    frames = sse({"out": [{"text": "a", "n": 1}]}, {"ping": 1}, {"out": [{"text": "bc", "n": 3}], "why": "stop"})
    record = read(backend, frames)
    assert record.chunks == [Chunk(1.0, 1), Chunk(3.0, 2)]
    assert (record.text, record.output_tokens, record.finish_reason) == ("abc", 3, "stop")
    with pytest.raises(ValueError, match="no placeholder"):
        backend.body(Prompt(token_ids=[1]), RequestOptions())


def test_a_template_of_an_answer_that_repeats_itself(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text(json.dumps({"endpoint": "/", "body": {"p": "$prompt"}, "text": "t", "cumulative": True}))
    record = read(load_template(path), sse({"t": "a"}, {"t": "abc"}))
    assert (record.text, len(record.chunks), record.error) == ("abc", 2, ErrorClass.NONE)


def test_a_bad_template(tmp_path: Path) -> None:
    path = tmp_path / "template.json"
    path.write_text('{"endpoint": "/", "body": {}, "txet": "t"}')
    with pytest.raises(ValueError, match=r"template\.json: .*txet"):
        load_template(path)
