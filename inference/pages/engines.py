"""What the engines page shows: the engines' heartbeats and the queues, read from Redis."""

import time
from dataclasses import dataclass, field

import redis
from django.conf import settings
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.bus.messages import EngineStatus
from inference.bus.status import QueueDepth, read_engines, read_queues

ANSWER_SECONDS = 1.0  # a page must not wait for a Redis that is away
FRAGMENT = "admin/inference/engine/snapshot.html"


@dataclass(frozen=True, slots=True)
class Snapshot:
    engines: list[EngineStatus] = field(default_factory=list)
    queues: list[QueueDepth] = field(default_factory=list)
    error: str = ""


def read_snapshot() -> Snapshot:
    connection = redis.Redis.from_url(
        settings.RWKV.redis_url,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    with connection:
        try:
            engines = read_engines(connection)
            models = sorted({status.model.id for status in engines if status.model})
            return Snapshot(engines, read_queues(connection, models))
        except redis.RedisError as error:
            return Snapshot(error=f"Redis does not answer: {error}")


def render_snapshot() -> SafeString:
    """The live part of the page, as HTML."""
    snapshot = read_snapshot()
    now = time.time()
    context = {
        "error": snapshot.error,
        "engines": [
            {"status": status, "tables": [_facts(status), _rows(status, now)], "loaded": round(100 * status.progress)}
            for status in snapshot.engines
        ],
        "queues": {
            "headers": ["Model", "Interactive rows waiting", "Offline rows waiting"],
            "rows": [[queue.model, queue.interactive, queue.offline] for queue in snapshot.queues],
        },
    }
    return render_to_string(FRAGMENT, context)


def _facts(status: EngineStatus) -> dict:
    model = status.model
    name = f"{model.id} (random weights)" if model and model.random else model.id if model else "-"
    return {
        "headers": [
            "Model",
            "Parameters",
            "Back end",
            "Host",
            "Slots",
            "Running",
            "Waiting",
            "Step",
            "Tokens/s",
            "Prompt tokens/s",
        ],
        "rows": [
            [
                name,
                f"{model.parameters / 1e6:,.1f} M" if model else "-",
                f"{status.backend} on {status.device}" if status.backend else "-",
                f"{status.host}, process {status.pid}",
                status.slots,
                status.running,
                status.waiting,
                f"{status.step_ms:.2f} ms",
                f"{status.generated_tokens_per_second:,.1f}",
                f"{status.prompt_tokens_per_second:,.1f}",
            ]
        ],
    }


def _rows(status: EngineStatus, now: float) -> dict:
    return {
        "headers": ["Request", "Endpoint", "State", "Prompt tokens", "Generated", "Age"],
        "rows": [
            [
                row.request_id,
                row.endpoint,
                row.state,
                f"{row.prefilled_tokens:,} of {row.prompt_tokens:,}",
                f"{row.generated_tokens:,} of {row.max_tokens:,}",
                f"{max(0.0, now - row.created):.0f} s",
            ]
            for row in status.rows
        ],
    }
