"""Transcription: the prompt is a user message with a part `input_audio`, uploaded as a form."""

import base64
import secrets
from typing import Any

from benchmarks.loadgen import audio
from benchmarks.loadgen.backends.base import merge
from benchmarks.loadgen.backends.openai import OpenAIBackend
from benchmarks.loadgen.backends.reply import Reply
from benchmarks.loadgen.exchange import Prompt, RequestOptions


class Audio(OpenAIBackend):
    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        """`file` is (name, bytes), the other fields are those of the form."""
        part = next(audio.parts_of(prompt), None)
        if part is None:
            raise ValueError(f"prompt: the back end {self.name} needs a message with a part of type input_audio")
        body = self.common(prompt, options)
        if body.pop("stream_options", None):
            body |= {"stream_include_usage": True, "stream_continuous_usage_stats": True}
        try:
            upload = (f"audio.{part.get('format', 'wav')}", base64.b64decode(part["data"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"prompt: a part of type input_audio needs its data in base64: {error}") from None
        return merge(body, {"file": upload}, options.extra_body)

    def read(self, data: dict[str, Any], reply: Reply) -> None:
        super().read(data, reply)
        kind = data.get("type")
        if kind == "transcript.text.delta":
            reply.content(data["delta"])
        elif kind == "transcript.text.done":
            reply.ended = True
        elif "text" in data:
            reply.content(data["text"])

    def encode(self, body: dict[str, Any]) -> tuple[bytes, str]:
        boundary = secrets.token_hex(16)
        fields = [_form_field(boundary, name, value) for name, value in body.items()]
        return b"".join(fields) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def _form_field(boundary: str, name: str, value: Any) -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'
    if isinstance(value, tuple):
        file_name, data = value
        head += f'; filename="{file_name}"\r\nContent-Type: application/octet-stream'
    else:
        data = (str(value).lower() if isinstance(value, bool) else str(value)).encode()
    return f"{head}\r\n\r\n".encode() + data + b"\r\n"
