"""The bytes of native replies and streams, as patterns."""

STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'
_TEXT = rb'(?!"")' + STRING
_REASON = rb'"(?:stop|length)"'
_USAGE = (
    rb'"usage":\{"prompt_tokens":\d+,"completion_tokens":\d+,"total_tokens":\d+,'
    rb'"prompt_tokens_details":\{"cached_tokens":\d+\}\}'
)


def reply(choices: int, *, reply_id: bytes = b"rwkv7-batch", object_name: bytes = b"chat.completion") -> bytes:
    """A whole reply of the native routes."""
    written = [
        rb'\{"index":%d,"message":\{"role":"assistant","content":%b\},"finish_reason":%b\}' % (index, STRING, _REASON)
        for index in range(choices)
    ]
    head = rb'\{"id":"%b","object":"%b","created":\d+,"model":%b,"choices":\[' % (reply_id, object_name, STRING)
    return head + b",".join(written) + rb"\]," + _USAGE + rb"\}"


def stream(choices: int) -> bytes:
    """A whole stream of the native routes, as the Python server's clients read it."""
    head = rb'data: \{"id": %b, "object": "chat\.completion\.chunk", "created": \d+, "model": %b, "choices": \[' % (
        STRING,
        STRING,
    )
    text = rb'\{"index": \d+, "delta": \{"content": %b\}\}' % _TEXT
    ends = [rb'\{"index": %d, "delta": \{\}, "finish_reason": %b\}' % (index, _REASON) for index in range(choices)]
    frames = rb"(?:" + head + text + rb"(?:, " + text + rb")*\]\}\n\n)*"
    return frames + head + b", ".join(ends) + rb"\]\}\n\ndata: \[DONE\]\n\n"


def single_stream(choices: int) -> bytes:
    """A whole stream in the C++ server's form: one choice in a frame, keys sorted, no spaces."""
    tail = rb'\],"created":\d+,"id":%b,"model":%b,"object":"chat\.completion\.chunk"\}\n\n' % (STRING, STRING)
    text = rb'\{"delta":\{"content":%b\},"index":\d+\}' % _TEXT
    ends = [rb'\{"delta":\{\},"finish_reason":%b,"index":%d\}' % (_REASON, index) for index in range(choices)]
    frames = rb'(?:data: \{"choices":\[' + text + tail + rb")*"
    return frames + rb'data: \{"choices":\[' + b",".join(ends) + tail + rb"data: \[DONE\]\n\n"


def translations(codes: list[bytes]) -> bytes:
    items = [rb'\{"detected_source_lang":"%b","text":%b\}' % (code, STRING) for code in codes]
    return rb'\{"translations":\[' + b",".join(items) + rb"\]\}"
