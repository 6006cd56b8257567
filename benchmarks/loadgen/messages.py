"""What the supervisor and its workers tell each other over their pipes, one message pack value each."""

from typing import Protocol

import msgspec

from benchmarks.loadgen.datasets.conversations import Conversation
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.records import RequestRecord
from benchmarks.loadgen.target import Target


class Message(msgspec.Struct, tag=True, frozen=True):
    """Anything that goes through a pipe."""


class Start(Message, frozen=True):
    """The load begins at this moment of the monotonic clock, which all processes of a machine share."""

    epoch: float


class Stop(Message, frozen=True):
    """Send nothing more. Running requests have `grace` seconds; 0 gives them up at once."""

    grace: float


class Read(Message, frozen=True):
    """Every worker's load is over: exchanges may now be read, which costs time that nobody measures."""


class Ready(Message, frozen=True):
    """Connections can be opened and bodies are made: the worker waits for Start."""


class Progress(Message, frozen=True):
    """So far. `tokens` counts answers that ended; `ttfts` (seconds) are those since the last message."""

    sent: int
    done: int
    failed: int
    tokens: int
    ttfts: list[float]


class Over(Message, frozen=True):
    """Everything was sent and has ended."""


class Report(Message, frozen=True):
    """What a worker has measured: `send_lags` and `loop_lags` in seconds, CPU in percent of one core.

    `audio_seconds` are those of the requests that succeeded, the warm-up left out (see `audio.seconds`).
    """

    records: list[RequestRecord]
    send_lags: list[float]
    loop_lags: list[float]
    cpu_percent: float
    audio_seconds: float = 0.0


class Scheduled(msgspec.Struct, frozen=True):
    """One request of an open loop."""

    index: int
    time: float
    prompt: Prompt


class User(msgspec.Struct, frozen=True):
    """One user of a closed loop, who goes through `order` (places in the task's prompts or conversations).

    `requests` bounds what it sends; with `repeats` it begins its order anew at the end.
    """

    number: int
    start: float
    order: list[int]
    requests: int | None
    repeats: bool
    active_conversations: int = 1


class Task(Message, frozen=True, kw_only=True):
    """All that one worker has to do, and its first message.

    It has either `scheduled` requests or `users`, who have either prompts or conversations.
    """

    worker: int
    run_id: str
    target: Target
    seed: int
    warmups: list[Prompt]
    warmup_concurrency: int
    scheduled: list[Scheduled]
    max_concurrency: int | None
    users: list[User]
    all_users: int
    prompts: list[Prompt]
    conversations: list[Conversation]
    conversation_sampling: str
    stateful: bool
    think_time: float
    max_retries: int
    deadline: float | None
    grace: float
    cancel_fraction: float
    cancel_after: float
    keep_text: bool
    tokenizer: str


class Pipe(Protocol):
    """A multiprocessing.Connection, as far as messages need one."""

    def send_bytes(self, buf: bytes) -> None: ...
    def recv_bytes(self) -> bytes: ...
    def fileno(self) -> int: ...


_task_decoder = msgspec.msgpack.Decoder(Task)
_decoder = msgspec.msgpack.Decoder(Start | Stop | Read | Ready | Progress | Over | Report)


def send(pipe: Pipe, message: Message) -> None:
    pipe.send_bytes(msgspec.msgpack.encode(message))


def receive(pipe: Pipe) -> Message:
    """Raises EOFError when the other side is gone."""
    return _decoder.decode(pipe.recv_bytes())


def receive_task(pipe: Pipe) -> Task:
    """A worker's first message. Raises EOFError when the other side is gone."""
    return _task_decoder.decode(pipe.recv_bytes())
