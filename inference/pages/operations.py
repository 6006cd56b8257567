"""What the operations page knows: engines, requests, queues, levels of states and errors, at one moment.

No process has all of it. Engines say what they hold in their heartbeats; the web processes say which requests are
theirs, of which an engine may not have taken any row yet; Redis has the queues, the samples and the last errors.
"""

from dataclasses import dataclass, field

import redis
from asgiref.sync import async_to_sync
from django.conf import settings
from redis import asyncio as aioredis
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.bus import control
from inference.bus.messages import Action, EngineStatus, ErrorRecord, RunningRequest
from inference.bus.operations import read_errors
from inference.bus.status import QueueDepth, read_engines, read_queues
from sessions.models import LevelSample

ANSWER_SECONDS = 1.0  # a page must not wait for a Redis that is away
ERRORS_SHOWN = 20
PHASES = ("queued", "waiting", "prefill", "decode")  # a request is as far as the first of its rows


@dataclass(slots=True)
class LiveRequest:
    """A request with all its rows. Counts are sums over them."""

    id: str
    endpoint: str
    created: float  # Unix seconds
    state: str = "queued"
    engines: set[str] = field(default_factory=set)
    rows: int = 0  # that an engine has taken
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    engines: list[EngineStatus] = field(default_factory=list)
    requests: list[LiveRequest] = field(default_factory=list)  # oldest first
    queues: list[QueueDepth] = field(default_factory=list)
    errors: list[ErrorRecord] = field(default_factory=list)  # newest first
    durable: LevelSample | None = None  # what is in the database, counted once a minute
    failure: str = ""


def connect() -> redis.Redis:
    return redis.Redis.from_url(
        settings.RWKV.redis_url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def read_snapshot() -> Snapshot:
    """Not for the event loop: it asks Redis and the database."""
    durable = LevelSample.objects.last()
    try:
        with connect() as connection:
            engines = read_engines(connection)
            models = sorted({status.model.id for status in engines if status.model})
            queues, errors = read_queues(connection, models), read_errors(connection, ERRORS_SHOWN)
        return Snapshot(engines, merge(give_order("list"), engines), queues, errors, durable)
    except redis.RedisError as error:
        return Snapshot(durable=durable, failure=str(error))


def give_order(action: Action, request_id: str = "") -> list[RunningRequest]:
    """See `inference.bus.control`. Raises redis.RedisError when Redis is away."""
    return async_to_sync(_give_order)(action, request_id)


async def _give_order(action: Action, request_id: str) -> list[RunningRequest]:
    seconds = control.ANSWER_SECONDS + ANSWER_SECONDS  # a process that dies is waited for
    retry = Retry(NoBackoff(), 0)
    async with aioredis.Redis.from_url(settings.RWKV.redis_url, socket_timeout=seconds, retry=retry) as connection:
        return await control.give_order(connection, action, request_id)


def merge(running: list[RunningRequest], engines: list[EngineStatus]) -> list[LiveRequest]:
    """What web processes and engines say of requests, put together.

    A request that only one side knows is shown too: no engine has taken it, or its web process is busy or gone.
    """
    found: dict[str, LiveRequest] = {}
    for request in running:
        live = found.setdefault(request.id, LiveRequest(request.id, request.endpoint, request.created))
        live.prompt_tokens += request.prompt_tokens
        live.max_tokens += request.max_tokens
        live.generated_tokens += request.generated_tokens
    told = set(found)
    for engine in engines:
        for row in engine.rows:
            live = found.setdefault(row.request_id, LiveRequest(row.request_id, row.endpoint, row.created))
            live.state = row.state if not live.rows else min(live.state, row.state, key=PHASES.index)
            live.engines.add(engine.engine)
            live.rows += 1
            live.prefilled_tokens += row.prefilled_tokens
            if row.request_id not in told:
                live.prompt_tokens += row.prompt_tokens
                live.max_tokens += row.max_tokens
                live.generated_tokens += row.generated_tokens
    return sorted(found.values(), key=lambda request: (request.created, request.id))
