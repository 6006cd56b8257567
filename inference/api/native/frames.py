"""The frames of native streams, in the two forms of the older servers.

Both are a superset of what those servers sent: a frame may carry fields more than theirs, and the last
one says how each choice ended.
"""

import time
from collections.abc import AsyncIterator, Sequence

from inference.api.edge.replies import Usage
from inference.api.edge.sse import json_bytes, spaced_frame
from inference.api.generating.usage import count_usage
from inference.api.rows.generation import Generation


async def batch_frames(generation: Generation, label: str, with_usage: bool) -> AsyncIterator[bytes]:
    """The Python server's: every choice that has new text in one frame, and spaces in the JSON."""
    head = b'"id": %b, "object": "chat.completion.chunk", "created": %d, "model": %b, ' % (
        json_bytes(generation.request.request_id),
        time.time(),
        json_bytes(label),
    )
    ends: dict[int, str] = {}
    async for deltas in generation.deltas():
        texts = [
            b'{"index": %d, "delta": {"content": %b}}' % (delta.index, json_bytes(delta.text))
            for delta in deltas
            if delta.text
        ]
        if texts:
            yield spaced_frame(texts, head)
        ends |= {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
    yield spaced_frame(
        [
            b'{"index": %d, "delta": {}, "finish_reason": %b}' % (index, json_bytes(reason))
            for index, reason in sorted(ends.items())
        ],
        head,
    )
    if with_usage:
        yield spaced_frame([], head)[:-3] + b', "usage": ' + json_bytes(count_usage(generation)) + b"}\n\n"


async def single_frames(
    generation: Generation, label: str, with_usage: bool, indices: Sequence[int] | None = None
) -> AsyncIterator[bytes]:
    """The C++ server's: one choice in a frame, compact JSON with its keys sorted.

    `indices` are the choices' numbers where they are not 0, 1, 2...
    """
    numbers = range(len(generation.request.rows)) if indices is None else indices
    tail = b'"created":%d,"id":%b,"model":%b,"object":"chat.completion.chunk"' % (
        time.time(),
        json_bytes(generation.request.request_id),
        json_bytes(label),
    )
    ends: dict[int, str] = {}
    async for deltas in generation.deltas():
        for delta in deltas:
            if delta.text:
                content = b'{"delta":{"content":%b},"index":%d}' % (json_bytes(delta.text), numbers[delta.index])
                yield _compact_frame(content, tail)
            if delta.finish_reason:
                ends[numbers[delta.index]] = delta.finish_reason
    endings = [
        b'{"delta":{},"finish_reason":%b,"index":%d}' % (json_bytes(reason), index)
        for index, reason in sorted(ends.items())
    ]
    yield _compact_frame(b",".join(endings), tail)
    if with_usage:
        yield _compact_frame(b"", tail, count_usage(generation))


def _compact_frame(choices: bytes, tail: bytes, usage: Usage | None = None) -> bytes:
    more = b"" if usage is None else b',"usage":' + json_bytes(usage)
    return b'data: {"choices":[' + choices + b"]," + tail + more + b"}\n\n"
