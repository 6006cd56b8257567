"""/state/status and /state/delete: the list of sessions."""

import re
import time

import pytest
import redis

from inference.bus.status import read_engines
from tests.api.turns import branch, listed, say, text_of
from tests.service import wait_until


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_status_lists_sessions_with_their_levels(api, session, method):
    say(api, session, "One")
    wait_until(lambda: listed(api, session)[0]["cache_level"] == "L1 (VRAM)", 30, "the heartbeat tells of the state")
    reply = api.send(method, "/state/status", {} if method == "POST" else None).reply
    assert reply["status"] == "success"
    counts = reply["l1_cache_count"], reply["l2_cache_count"], reply["database_count"]
    assert reply["total_sessions"] == sum(counts) == len(reply["sessions"])
    (item,) = [item for item in reply["sessions"] if item["session_id"] == session]
    assert item == {
        "session_id": session,
        "cache_level": "L1 (VRAM)",
        "last_updated": "In Memory",
        "timestamp": item["timestamp"],
    }
    for other in reply["sessions"]:
        if other["cache_level"] == "Database (Disk)":
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", other["last_updated"])


def test_a_deleted_session_begins_anew(api, session):
    first = text_of(say(api, session, "One"))
    answer = api.post("/state/delete", {"session_id": session})
    assert answer.reply == {"status": "success", "message": f"Session {session} deleted successfully"}
    assert not listed(api, session)
    assert text_of(say(api, session, "One")) == first


def test_deleting_what_is_not_there(api, session):
    answer = api.post("/state/delete", {"session_id": session})
    message = f"Session {session} not found in database"
    assert (answer.status, answer.json) == (404, {"status": "not_found", "message": message})
    assert api.post("/state/delete", {"session_id": session, "delete_prefix": True}).status == 200
    answer = api.post("/state/delete", {})
    assert (answer.status, answer.json) == (400, {"error": "Missing session_id parameter"})


def test_a_prefix_deletes_all_branches(api, session):
    for index in (0, 1, 1):
        branch(api, session, index, "One")
    say(api, f"{session}x", "One")
    assert api.post("/state/delete", {"session_id": session, "delete_prefix": True}).status == 200
    assert not listed(api, session)
    assert listed(api, f"{session}x")


@pytest.mark.parametrize("with_prefix", [False, True])
def test_the_engines_forget_the_states_of_deleted_sessions(api, service, session, with_prefix):
    def in_memory(since: float = 0.0) -> set[bytes]:
        """By a heartbeat from `since` on."""
        with redis.Redis.from_url(service.redis_url) as connection:
            (engine,) = read_engines(connection)
            while engine.updated < since:
                (engine,) = read_engines(connection)
        return {*engine.device_states, *engine.host_states}

    before = in_memory(since=time.time())  # with those of tests that have just ended
    for number in range(3):
        say(api, f"{session}:{number}" if with_prefix else session, f"{session} {number}")
    heads = 3 if with_prefix else 1
    wait_until(
        lambda: [item["cache_level"].startswith("L") for item in listed(api, session)] == [True] * heads,
        30,
        "the heartbeat tells of the states",
    )
    made = in_memory() - before
    assert len(made) >= heads
    assert api.post("/state/delete", {"session_id": session, "delete_prefix": with_prefix}).status == 200
    wait_until(lambda: not in_memory() & made, 30, "the states are dropped")


def test_a_branch_outlives_its_deleted_parent(api, session):
    branch(api, session, 0, "One")
    expected = text_of(branch(api, session, 1, "Two"))
    child = text_of(branch(api, session, 2, "Three"))
    assert api.post("/state/delete", {"session_id": f"{session}:1"}).status == 200
    assert branch(api, session, 1, "Two").status == 404
    assert text_of(branch(api, session, 2, "Three")) == child
    assert expected
