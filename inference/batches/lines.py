"""The lines of a job's input: how they are read, and what is refused before any is sent."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from django.conf import settings
from msgspec import Meta

MAX_LINES = 50_000
MAX_ERRORS = 100
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RequestLine(msgspec.Struct):
    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw  # sent as it stands


class InputError(msgspec.Struct):
    """One entry of a refused job's `errors`."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Checked(msgspec.Struct):
    """What the check of an input found. `model` is the first line's."""

    total: int = 0
    model: str = ""
    errors: list[InputError] = []


decode_line = msgspec.json.Decoder(RequestLine).decode


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number from 1. One too long to be a request comes cut."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(settings.RWKV.max_body_bytes + 1):
            number += 1
            line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                yield number, line


def check_input(path: Path, endpoint: str) -> Checked:
    """Read the whole input without keeping it. Raises FileNotFoundError."""
    checked = Checked()
    seen: dict[str, int] = {}
    for number, line in read_lines(path):
        checked.total += 1
        error = _too_much(checked.total, line)
        if error is None:
            error = _check_line(line, endpoint, seen, number, checked)
        if error:
            error.line = number
            checked.errors.append(error)
            if error.code in ("too_many_lines", "line_too_long") or len(checked.errors) == MAX_ERRORS:
                break
    if not checked.total:
        checked.errors.append(InputError("empty_file", "the input file has no lines"))
    return checked


def _too_much(total: int, line: bytes) -> InputError | None:
    if total > MAX_LINES:
        return InputError("too_many_lines", f"the input file has more than {MAX_LINES} lines")
    if len(line) > settings.RWKV.max_body_bytes:
        return InputError("line_too_long", f"this line is longer than {settings.RWKV.max_body_bytes} bytes")
    return None


def _check_line(line: bytes, endpoint: str, seen: dict[str, int], number: int, checked: Checked) -> InputError | None:
    try:
        request = decode_line(line)
        body = msgspec.json.decode(request.body)
    except msgspec.ValidationError as error:
        return _as_input_error(error)
    except (msgspec.DecodeError, RecursionError) as error:
        return InputError("invalid_json_line", f"this line is not valid JSON: {error}")
    if request.url.rstrip("/") != endpoint:
        return InputError("invalid_url", f"expected the batch's endpoint {endpoint}, got {request.url!r:.100}", "url")
    if not isinstance(body, dict):
        return InputError("invalid_body", "expected an object", "body")
    if body.get("stream"):
        return InputError("invalid_body", "an answer in a batch cannot stream", "body.stream")
    first = seen.setdefault(request.custom_id, number)
    if first != number:
        return InputError("duplicate_custom_id", f"line {first} has the same custom_id", "custom_id")
    if checked.total == 1:
        checked.model = _printable(body.get("model"))
    return None


def _as_input_error(error: msgspec.ValidationError) -> InputError:
    """msgspec's "Expected `str`, got `int` - at `$.custom_id`", with the field apart."""
    problem, _, place = str(error).partition(" - at ")
    missing = re.search(r"missing required field `(\w+)`", problem)
    path = re.search(r"\$\.([\w.]+)", place)
    if missing:
        return InputError("missing_required_parameter", f"{missing[1]} is missing", missing[1])
    # A message may quote the line, and PostgreSQL's JSON holds every character but NUL.
    return InputError("invalid_line", problem.replace("\0", "\\0")[:500], path[1] if path else None)


def _printable(value: Any) -> str:
    return value[:200] if isinstance(value, str) and value.isprintable() else ""
