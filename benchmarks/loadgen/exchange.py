"""What goes into one request of a load and what comes back raw; data sets, back ends and workers meet here."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from benchmarks.loadgen.records import ErrorClass, RequestRecord


class Prompt(msgspec.Struct, kw_only=True):
    """One request as a data set describes it. Exactly one of `text`, `token_ids`, `messages` and `batch` is set.

    `batch` holds several prompts for one request. Of those with different lengths the largest is asked for.
    """

    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    batch: "list[Prompt] | None" = None
    suffix: str | None = None  # fill in the middle
    output_tokens: int | None = None  # asked for, of each prompt; None leaves it to the server
    min_output_tokens: int | None = None
    prompt_tokens: int | None = None  # as the data set counts them, where it does
    timestamp: float | None = None  # seconds from the start of a trace
    session: str | None = None
    turn: int = 0


class RequestOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What all requests of a run share. `sampling` and `extra_body` go into the body as they are."""

    model: str = ""
    stream: bool = True
    ignore_eos: bool = False
    exact_length: bool = False  # send min_tokens as well
    logprobs: int | None = None
    sampling: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    chat_template_kwargs: dict[str, Any] = {}


class Exchange(msgspec.Struct, kw_only=True):
    """One HTTP exchange as it was captured: bytes with the times they arrived (seconds since the run's start)."""

    sent: float
    headers: float | None = None
    done: float | None = None
    http_status: int | None = None
    content_type: str = ""
    retry_after: float | None = None
    connection_reused: bool | None = None
    pieces: list[tuple[float, bytes]] = []
    error: ErrorClass = ErrorClass.NONE
    error_text: str = ""


class Backend(Protocol):
    """A wire protocol. Adding one is a module in `backends/` and a line in its registry."""

    name: str
    default_endpoint: str
    headers: Mapping[str, str]  # besides those of the run

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        """What to send, as `encode` takes it. Raises ValueError for a prompt that this protocol cannot carry."""
        ...

    def encode(self, body: dict[str, Any]) -> tuple[bytes, str]:
        """The bytes to send and their content type: JSON, but for uploads."""
        ...

    def parse(self, exchange: Exchange, record: RequestRecord) -> None:
        """Fill the record's chunks, token counts, finish reason and error from the captured bytes."""
        ...
