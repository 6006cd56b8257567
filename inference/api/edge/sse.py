"""Server-sent events: the response, the frames, and what ends a stream.

A frame costs a process far more than a token, so it is put together from bytes: what stays the same
in every frame of a stream is encoded once, and only the text and the numbers are new.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from django.http import StreamingHttpResponse

from inference.api.edge.errors import ApiError, as_api_error, error_body, report_error
from inference.api.edge.throttles import Place
from inference.api.rows.generation import Generation, GenerationFailed

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"

json_bytes = msgspec.json.encode


class EventStream(StreamingHttpResponse):
    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        super().__init__(frames, content_type="text/event-stream; charset=utf-8")
        self["Cache-Control"] = "no-cache"
        self["X-Accel-Buffering"] = "no"  # nginx would collect the frames


async def guard_stream(
    generation: Generation, frames: AsyncIterator[bytes], place: Place | None, *, native: bool
) -> AsyncIterator[bytes]:
    """The frames, an error frame if they fail, and [DONE].

    A client may send its next request as soon as it knows how this one ended, so the caller's place and
    the session are free before the frame that says it.

    The first item is empty and is to be taken before the response starts: from then on, the
    generation is cancelled and the caller's place released even if nobody reads the stream (asyncio
    closes a started generator that is dropped, but never enters one that was not started).
    """

    async def let_go() -> None:
        await generation.release()
        if place:
            await place.release()

    try:
        async with generation, aclosing(frames):
            yield b""
            try:
                async for frame in frames:
                    if generation.over:
                        await let_go()
                    yield frame
            except Exception as exc:
                if not isinstance(exc, GenerationFailed | ApiError):
                    log.exception("a stream failed")
                error = as_api_error(exc)
                report_error(exc, error, generation.request.endpoint)
                await let_go()
                yield error_frame(error, native=native)
            yield DONE
    finally:
        await let_go()


def error_stream(error: ApiError) -> EventStream:
    """A native stream that is an error, as the older servers answer what is too large."""

    async def frames() -> AsyncIterator[bytes]:
        yield error_frame(error, native=True)
        yield DONE

    return EventStream(frames())


def error_frame(error: ApiError, *, native: bool) -> bytes:
    return b"data: " + json_bytes(error_body(error, native=native)) + b"\n\n"


class ChunkFrames:
    """Frames of one OpenAI stream: fixed fields, `choices`, and `usage` where the client asked for it."""

    def __init__(self, *, object_name: str, with_usage: bool, **fixed: Any) -> None:
        head = json_bytes({"id": fixed.pop("id"), "object": object_name, **fixed})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"

    def frame(self, choice: bytes, usage: Any = None) -> bytes:
        """One choice, or none (`b""`); `usage` takes the place of its null."""
        if usage is None:
            return self._head + choice + self._tail
        return self._head + choice + b'],"usage":' + json_bytes(usage) + b"}\n\n"


def spaced_frame(choices: list[bytes], head: bytes) -> bytes:
    """A native frame. Its clients were written against `", "` and `": "` between the parts."""
    return b"data: {" + head + b'"choices": [' + b", ".join(choices) + b"]}\n\n"
