"""A wire protocol that a file describes."""

import json
from pathlib import Path

import pytest

from benchmarks.loadgen.backends.template import load_template
from benchmarks.loadgen.exchange import Prompt, RequestOptions
from benchmarks.loadgen.records import Chunk, ErrorClass
from tests.loadgen.answers import TEXT, read, sse

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
