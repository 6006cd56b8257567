"""How a turn of a session ends when its client goes while it is being written."""

import asyncio
import sqlite3

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection as database

from inference.api.rows.engines import bus
from sessions.models import Turn
from tests.api.test_auth import post
from tests.bus.conftest import connection, start_worker  # noqa: F401

BODY = {"session_id": "s", "contents": ["a"], "max_tokens": 3, "temperature": 0, "stop_tokens": []}


async def test_the_next_turn_begins_when_this_one_is_written(client, start_worker):  # noqa: F811
    """Its writing goes on in a thread, here for as long as somebody else writes to the database."""

    async def say(content: str) -> int:
        async with ThreadSensitiveContext():  # a thread of its own, as every request has under ASGI
            return (await post(client, "/state/chat/completions", BODY | {"contents": [content]})).status_code

    start_worker()
    assert await say("first") == 200
    writer = sqlite3.connect(database.settings_dict["NAME"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    left = asyncio.create_task(say("second"))
    while not bus().active_rows:
        await asyncio.sleep(0)
    while bus().active_rows:
        await asyncio.sleep(0)
    for _ in range(20):  # turns of the loop, in which the writing begins
        await asyncio.sleep(0)
    left.cancel()
    following = asyncio.create_task(say("third"))
    done, _ = await asyncio.wait([left, following], timeout=1.0)
    assert not done
    writer.execute("ROLLBACK")
    writer.close()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await following == 200
    assert await sync_to_async(Turn.objects.count)() == 3
