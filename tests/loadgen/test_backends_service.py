"""The back ends of our own routes against the service itself."""

import asyncio
import time

import pytest

from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.capture import Timeouts, exchange, open_session
from benchmarks.loadgen.datasets import load_prompts
from benchmarks.loadgen.exchange import Prompt, RequestOptions
from benchmarks.loadgen.metrics import summarise
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import ErrorClass, RequestRecord, TokenSource
from tests.service import Service

TOKENS = 40  # more than a frame of any route holds
STREAMING = (name for name in BACKENDS if name.startswith("rwkv") and name != "rwkv-translate")
OURS = ("openai", "openai-chat", "vllm", "vllm-chat", *STREAMING)


def run(service: Service, name: str, prompt: Prompt, options: RequestOptions) -> RequestRecord:
    """One request, as a worker sends and reads it."""
    backend = BACKENDS[name]
    body, content_type = backend.encode(backend.body(prompt, options))

    async def send() -> RequestRecord:
        async with open_session() as session:
            url = service.url + backend.default_endpoint
            got = await exchange(session, url, {"Content-Type": content_type}, body, time.monotonic, Timeouts())
        record = RequestRecord(index=0)
        read_exchange(backend, prompt, got, record, keep_text=True)
        return record

    return asyncio.run(send())


@pytest.mark.parametrize("name", OURS)
def test_a_stream_of_our_service(service: Service, name: str) -> None:
    # FIM sends a second text, which the other routes do not know.
    prompt = Prompt(text="Once upon a time", suffix="end" if name == "rwkv-fim" else None, output_tokens=TOKENS)
    record = run(service, name, prompt, RequestOptions(ignore_eos=True, sampling={"temperature": 1.0}))
    assert (record.error, record.error_text) == (ErrorClass.NONE, "")
    assert (record.output_tokens, record.output_tokens_source) == (TOKENS, TokenSource.USAGE)
    assert record.prompt_tokens_source is TokenSource.USAGE and record.prompt_tokens
    assert record.finish_reason == "length"
    assert len(record.chunks) > 1 and record.text
    latencies = summarise([record])["latency_ms"]
    assert all(latencies[figure]["count"] == 1 for figure in ("ttft", "tpot", "e2el"))


@pytest.mark.parametrize("name", ["vllm", "vllm-chat"])
def test_our_service_counts_the_tokens_of_every_chunk(service: Service, name: str) -> None:
    record = run(service, name, Prompt(text="Once", output_tokens=TOKENS), RequestOptions(ignore_eos=True))
    counts = [chunk.tokens for chunk in record.chunks]
    assert None not in counts
    assert 0 < sum(count or 0 for count in counts) <= TOKENS
    assert not summarise([record])["chunk_estimated"]


def test_a_batch_is_one_exchange_with_several_streams(service: Service) -> None:
    values = {"dataset_name": "random", "random_input_len": 5, "random_output_len": TOKENS, "batch_size": 3}
    [prompt] = load_prompts(checked_profile(values), 1)
    for name in ("rwkv-batch", "openai"):
        record = run(service, name, prompt, RequestOptions(ignore_eos=True))
        assert {chunk.choice for chunk in record.chunks} == {0, 1, 2}
        assert (record.prompt_tokens, record.output_tokens) == (15, 3 * TOKENS)


def test_texts_are_translated_in_one_exchange(service: Service) -> None:
    prompt = Prompt(batch=[Prompt(text="Guten Tag."), Prompt(text="Gute Nacht.")])
    record = run(service, "rwkv-translate", prompt, RequestOptions(extra_body={"source_lang": "de"}))
    assert (record.error, record.error_text) == (ErrorClass.NONE, "")
    assert record.text and record.chunks == []


def test_a_request_that_our_service_refuses(service: Service) -> None:
    record = run(service, "openai", Prompt(text="Once", output_tokens=-1), RequestOptions())
    assert record.error is ErrorClass.HTTP_4XX and "max_tokens" in record.error_text
