"""Uploads of sound: what is sent, what is read, and how long it lasts."""

import base64
import json
import wave
from collections.abc import Iterator
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from math import isnan
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.loadgen import audio, runner
from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.exchange import Prompt, RequestOptions
from benchmarks.loadgen.exports.vllm_json import to_vllm
from benchmarks.loadgen.options import checked_profile
from tests.loadgen.answers import (
    AUDIO,
    TEXT,
    read,
)


class Transcriber(BaseHTTPRequestHandler):
    """Answers every upload with one word."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = b'{"text": "word", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def transcriber() -> Iterator[int]:
    """The port of one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Transcriber) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def wav(seconds: float, rate_bytes: bytes | None = None) -> str:
    """`rate_bytes` take the place of the rate in its header."""
    data = BytesIO()
    with wave.open(data, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * round(8000 * seconds)))
    sound_bytes = bytearray(data.getvalue())
    if rate_bytes is not None:
        sound_bytes[24:28] = rate_bytes
    return base64.b64encode(sound_bytes).decode()


def spoken(data: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": data}}]}]}


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


def test_a_sound_is_no_text_to_count() -> None:
    record = read(BACKENDS["openai-audio"], ['{"text": "Hi"}'], prompt=AUDIO, content_type="application/json")
    assert record.prompt_tokens == 0


def test_audio_is_measured_against_its_own_length(transcriber: int, tmp_path: Path) -> None:
    path = tmp_path / "audio.jsonl"
    path.write_text("".join(json.dumps(spoken(wav(seconds))) + "\n" for seconds in (1.5, 2.5)))
    values = {"backend": "openai-audio", "port": transcriber, "model": "m", "stream": False, "workers": 2}
    data = {"dataset_name": "custom", "dataset_path": str(path), "num_prompts": 2, "tokenizer": "none"}
    result = runner.run(checked_profile(values | data), kind="serve")
    assert result.summary["requests"]["completed"] == 2
    fields = to_vllm(result, detailed=False)
    assert fields["rtfx"] == pytest.approx(4.0 / fields["duration"])
    assert fields["total_input_tokens"] == 18


@pytest.mark.parametrize("part", [{}, {"data": "/"}, {"data": 1}])
def test_audio_that_is_none_is_refused_before_it_is_sent(part: dict[str, Any]) -> None:
    prompt = Prompt(messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": part}]}])
    with pytest.raises(ValueError, match="input_audio needs its data in base64"):
        BACKENDS["openai-audio"].body(prompt, RequestOptions())


def test_audio_of_unknown_length_makes_no_figure() -> None:
    assert audio.seconds([AUDIO]) != audio.seconds([AUDIO])  # nan: no WAV
    without_a_rate = wav(1.0, rate_bytes=bytes(4))
    assert isnan(audio.seconds([Prompt(**spoken(without_a_rate))]))
    assert audio.seconds([TEXT]) == 0.0
    assert audio.figures(audio.seconds([AUDIO]), 2.0) == {}
    assert audio.figures(0.0, 2.0) == {}
