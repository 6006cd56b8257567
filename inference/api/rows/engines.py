"""The web process's connection to the engines, and what they say of themselves."""

import asyncio
from weakref import WeakKeyDictionary

from django.conf import settings

from inference.bus.client import BusClient
from inference.bus.messages import EngineStatus, ModelInfo

_clients: "WeakKeyDictionary[asyncio.AbstractEventLoop, BusClient]" = WeakKeyDictionary()


def bus() -> BusClient:
    """The process's bus client (one for each event loop; a server has one loop)."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        config = settings.RWKV
        _clients[loop] = BusClient(
            config.redis_url, max_queue=config.max_queue, grace_seconds=config.engine_grace_seconds
        )
    return _clients[loop]


async def live_engines() -> list[EngineStatus]:
    """The engines that are alive. Raises NoEngine when Redis is away."""
    return await bus().engines()


async def live_models() -> list[ModelInfo]:
    """The models that are loaded, each once. Raises NoEngine when Redis is away."""
    models = {engine.model.id: engine.model for engine in await live_engines() if engine.model}
    return list(models.values())
