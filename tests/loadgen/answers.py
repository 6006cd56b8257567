"""What a back end reads, and answers as the servers of every protocol write them."""

import base64
import json
from typing import Any, NamedTuple

from benchmarks.loadgen.exchange import Backend, Exchange, Prompt
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import ErrorClass, RequestRecord, TokenSource

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
