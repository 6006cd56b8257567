"""One line's way to the service and back, over HTTP like any client's."""

import asyncio
import random
import uuid
from dataclasses import dataclass

import aiohttp
import msgspec
from django.conf import settings

from inference.api.edge import worker_key
from inference.batches.lines import RequestLine

CONCURRENCY = 64
CONNECT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 15.0
BUSY = (429, 503)  # nothing was done, and it is worth asking again for as long as the job may run
TRIES = 3  # of a request that the service fails to answer, or answers with something else than JSON
REFUSALS = 3  # of a line in a row: one alone says that the key was too old on arrival, after a sleep or a set clock


class KeyRefused(Exception):
    """The service does not know this worker's key, so nothing can be asked."""


class LineResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    code: str
    message: str


class AnswerLine(msgspec.Struct):
    """A line of the output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int = 0


class _ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Under both spellings: completions count "prompt" tokens, responses "input" tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _CachedTokens | None = None
    input_tokens_details: _CachedTokens | None = None
    completion_tokens_details: _ReasoningTokens | None = None
    output_tokens_details: _ReasoningTokens | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    line: AnswerLine
    usage: Usage

    @property
    def failed(self) -> bool:
        return self.line.response is None or self.line.response.status_code >= 400


def new_line_id() -> str:
    return f"batch_req_{uuid.uuid4().hex[:24]}"


def open_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)  # an answer may take its time
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY), timeout=timeout)


async def ask(session: aiohttp.ClientSession, number: int, request: RequestLine, owner: str = "") -> Answer:
    """Ask on behalf of `owner`, until there is an answer. Raises KeyRefused."""
    line_id = new_line_id()
    pause, tries, refusals = FIRST_PAUSE_SECONDS, 0, 0
    while True:
        wait = 0.0
        try:
            async with session.post(
                f"{settings.RWKV.base_url}{request.url}",
                data=bytes(request.body),
                headers={
                    "Authorization": f"Bearer {worker_key.issue(owner)}",
                    "Content-Type": "application/json",
                    "X-Request-ID": line_id,
                },
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError):
            pass  # the web processes are restarting
        else:
            refusals = refusals + 1 if response.status == 401 else 0
            if refusals == REFUSALS:
                raise KeyRefused("the service refuses this worker's key: do both have the same VAR_DIR?")
            if response.status in BUSY:
                wait = _retry_after(response)
            elif not refusals:
                tries += 1
                answer = _read_answer(number, request, line_id, response, content)
                if tries == TRIES or not _broken(answer):
                    return answer
        await asyncio.sleep(max(wait, pause) * random.uniform(1.0, 1.25))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _read_answer(
    number: int, request: RequestLine, line_id: str, response: aiohttp.ClientResponse, content: bytes
) -> Answer:
    line = AnswerLine(line_id, request.custom_id)
    try:
        usage = _count(msgspec.json.decode(content, type=_Reply).usage)
    except msgspec.MsgspecError as error:
        message = f"HTTP {response.status} with a body that is not as expected: {error}"
        line.error = LineError("invalid_response", message)
        return Answer(number, line, Usage())
    body = msgspec.Raw(msgspec.json.format(content, indent=-1))  # on one line, however it was sent
    line.response = LineResponse(response.status, response.headers.get("X-Request-ID", line_id), body)
    return Answer(number, line, usage)


def _broken(answer: Answer) -> bool:
    return answer.line.response is None or answer.line.response.status_code >= 500


def _count(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    cached = usage.prompt_tokens_details or usage.input_tokens_details or _CachedTokens()
    reasoning = usage.completion_tokens_details or usage.output_tokens_details or _ReasoningTokens()
    return Usage(
        input_tokens=usage.prompt_tokens + usage.input_tokens,
        cached_tokens=cached.cached_tokens,
        output_tokens=usage.completion_tokens + usage.output_tokens,
        reasoning_tokens=reasoning.reasoning_tokens,
    )


def _retry_after(response: aiohttp.ClientResponse) -> float:
    given = response.headers.get("Retry-After", "")
    return min(float(given), LONGEST_PAUSE_SECONDS) if given.isdecimal() else 0.0
