"""What every wire protocol is sent, for single prompts and for batches."""

import csv
import json
from io import StringIO
from typing import Any

import pytest

from benchmarks.loadgen import exports
from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.exchange import Prompt, RequestOptions
from benchmarks.loadgen.records import ClientHealth, RequestRecord, RunResult
from tests.loadgen.answers import (
    ESTIMATE,
    TEXT,
    delta,
    read,
    sse,
)

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
