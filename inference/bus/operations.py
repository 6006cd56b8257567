"""What operators look back on: a sample of every engine each SAMPLE_SECONDS for an hour, and the last errors.

Both are in Redis and not in the database, so that an engine and a web process can write them at any time; whoever
looks finds them, whether or not a page was open when they happened.
"""

import time

import msgspec
import redis
from redis import asyncio as aioredis

from inference.bus import keys
from inference.bus.messages import EngineSample, EngineStatus, ErrorRecord

SAMPLE_SECONDS = 10.0
HISTORY_SECONDS = 3600.0
ERRORS_KEPT = 100

_sample_decoder = msgspec.msgpack.Decoder(EngineSample)
_error_decoder = msgspec.msgpack.Decoder(ErrorRecord)


def sample_of(status: EngineStatus) -> EngineSample:
    return EngineSample(
        engine=status.engine,
        slots=status.slots,
        running=status.running,
        waiting=status.waiting,
        prompt_tokens=status.prompt_tokens,
        generated_tokens=status.generated_tokens,
        cached_tokens=status.cached_tokens,
        ttft_ms_p50=status.ttft_ms_p50,
        ttft_ms_p99=status.ttft_ms_p99,
        device_states=len(status.device_states),
        host_states=len(status.host_states),
    )


def add_sample(pipeline: redis.client.Pipeline, sample: EngineSample) -> None:
    """Append to the common stream, by Redis's own clock, and drop what is too old."""
    oldest = int(1000 * (time.time() - HISTORY_SECONDS))
    fields = {"m": msgspec.msgpack.encode(sample)}
    pipeline.xadd(keys.SAMPLES, fields, minid=oldest, approximate=True)  # type: ignore[arg-type]


def read_samples(connection: redis.Redis, since: float) -> list[tuple[float, EngineSample]]:
    """(Unix seconds, sample) of all engines behind `since`, oldest first."""
    entries = connection.xrange(keys.SAMPLES, min=int(1000 * since))
    return [(int(entry.split(b"-")[0]) / 1000, _sample_decoder.decode(fields[b"m"])) for entry, fields in entries]


def add_error(pipeline: "redis.client.Pipeline | aioredis.client.Pipeline", record: ErrorRecord) -> None:
    """Put it before the others, and drop those beyond ERRORS_KEPT."""
    pipeline.lpush(keys.ERRORS, msgspec.msgpack.encode(record))
    pipeline.ltrim(keys.ERRORS, 0, ERRORS_KEPT - 1)


def read_errors(connection: redis.Redis, count: int = ERRORS_KEPT) -> list[ErrorRecord]:
    """Newest first."""
    return [_error_decoder.decode(record) for record in connection.lrange(keys.ERRORS, 0, count - 1)]
