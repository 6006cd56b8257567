"""The engines as one web process knows them: who is alive, and which models have had nobody for too long."""

import asyncio
import time

from redis import asyncio as aioredis
from redis.exceptions import RedisError

from inference.bus import keys
from inference.bus.call import NoEngine
from inference.bus.messages import EngineStatus
from inference.bus.status import decode_statuses

STATUS_SECONDS = 0.5  # how old what is known may be


class LiveEngines:
    """`grace_seconds` is how long the rows of a model wait for an engine that comes back."""

    def __init__(self, connection: aioredis.Redis, grace_seconds: float) -> None:
        self.known: list[EngineStatus] = []  # as of the last look, the oldest first
        self._redis = connection
        self._grace_seconds = grace_seconds
        self._looked = 0.0
        self._look: asyncio.Task[None] | None = None
        self._seen: dict[str, float] = {}  # model with rows -> when an engine that may serve it was last alive

    async def read(self) -> list[EngineStatus]:
        """Those alive, at most STATUS_SECONDS ago. Raises NoEngine when Redis is away."""
        if time.monotonic() - self._looked > STATUS_SECONDS:
            if self._look is None or self._look.done():  # one look for all who come meanwhile
                self._look = asyncio.create_task(self.look())
            try:
                await asyncio.shield(self._look)
            except RedisError as error:
                raise NoEngine("the message bus is not reachable") from error
        return self.known

    async def look(self) -> None:
        """Raises RedisError."""
        names = sorted(name.decode() for name in await self._redis.smembers(keys.ENGINES))
        values = await self._redis.mget([keys.engine(name) for name in names]) if names else []
        self.known = decode_statuses(values)
        self._looked = time.monotonic()
        for model in self._seen:
            if any(_may_serve(engine, model) for engine in self.known):
                self._seen[model] = self._looked

    async def require(self, model: str) -> None:
        """Have a model, which is to get rows, watched from now on. Raises NoEngine if none is ready to serve it."""
        states = {engine.state for engine in await self.read() if _may_serve(engine, model)}
        if "ready" not in states:
            loading = "loading" in states
            raise NoEngine("the model is still loading" if loading else "no engine is running for this model")
        self._seen[model] = time.monotonic()

    def give_up(self) -> list[str]:
        """The models that have had no engine for too long, which are not watched any more."""
        late = time.monotonic() - self._grace_seconds
        models = [model for model, seen in self._seen.items() if seen < late]
        for model in models:
            del self._seen[model]
        return models

    async def close(self) -> None:
        if self._look:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)


def _may_serve(engine: EngineStatus, model: str) -> bool:
    """One that is loading has not said which model it will serve."""
    return engine.model is None or engine.model.id == model
