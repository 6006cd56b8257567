"""Orders about running requests, for whichever process runs them.

A request is known to the web process that submitted it, and an order may reach any other. So an order
is published to all of them, and each that listens answers with the requests that it took part in.
"""

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

import msgspec
from redis import asyncio as aioredis
from redis.exceptions import RedisError

from inference.bus import keys
from inference.bus.messages import Action, Generate, Order, RunningRequest

if TYPE_CHECKING:
    from inference.bus.call import Call
    from inference.bus.client import BusClient

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
_LISTEN_SECONDS = 1.0
_RECONNECT_SECONDS = 0.2


async def give_order(
    connection: aioredis.Redis, action: Action, request_id: str = "", owner: str | None = None
) -> list[RunningRequest]:
    """Have every process act on the request, on all its own where no id is given. Returns the requests found.

    With `owner`, only requests of the caller of that name are found.

    A process that dies before it answers is waited for ANSWER_SECONDS.
    """
    order = Order(action, f"rwkv:answers:{uuid.uuid4().hex}", request_id, owner)
    listeners = await connection.publish(keys.ORDERS, msgspec.msgpack.encode(order))
    found: list[RunningRequest] = []
    for _ in range(listeners):
        answer = await connection.blpop([order.answers], timeout=ANSWER_SECONDS)
        if answer is None:
            break
        found += msgspec.msgpack.decode(answer[1], type=list[RunningRequest])
    return found


async def obey_orders(client: "BusClient", connection: aioredis.Redis) -> None:
    """Listen until the client closes."""
    while not client.closing:
        try:
            async with connection.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(keys.ORDERS)
                while not client.closing:
                    message = await pubsub.get_message(timeout=_LISTEN_SECONDS)
                    order = _read(message["data"]) if message else None
                    if order:
                        await _obey(client, connection, order)
        except (RedisError, OSError) as error:
            log.warning("listening for orders: %s", error)
            await asyncio.sleep(_RECONNECT_SECONDS)
        except Exception:  # a process that no longer listens would make every order wait for it
            log.exception("an order could not be obeyed")


def _read(data: bytes) -> Order | None:
    try:
        return msgspec.msgpack.decode(data, type=Order)
    except msgspec.MsgspecError as error:  # of another version
        log.error("an order cannot be read: %s", error)
        return None


async def _obey(client: "BusClient", connection: aioredis.Redis, order: Order) -> None:
    if order.action == "last":
        found = [request for owner, request in client.finished.items() if order.owner in (None, owner)]
    else:
        calls = [call for call in client.calls() if _is_meant(order, call.requests[0])]
        found = [describe(call) for call in calls]
        for call, request in zip(calls, found, strict=True):
            if order.action == "stop" or (order.action == "pause" and call.note is None):
                client.stop(call)
            elif order.action == "pause":
                await client.pause(call, request)
    pipeline = connection.pipeline(transaction=False)
    pipeline.rpush(order.answers, msgspec.msgpack.encode(found))
    pipeline.expire(order.answers, keys.ANSWER_TTL_SECONDS)
    await pipeline.execute()


def _is_meant(order: Order, request: Generate) -> bool:
    return order.request_id in ("", request.request_id) and order.owner in (None, request.owner)


def describe(call: "Call") -> RunningRequest:
    first = call.requests[0]
    return RunningRequest(
        id=first.request_id,
        owner=first.owner,
        state_key=first.state_key,
        endpoint=first.endpoint,
        model=first.model,
        created=first.created,
        prompt_tokens=sum(len(request.prompt) for request in call.requests),
        generated_tokens=sum(call.delivered),
        max_tokens=sum(request.max_tokens for request in call.requests),
    )
