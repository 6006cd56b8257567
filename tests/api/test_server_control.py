"""Status, stop, pause and resume, with two web processes: the order mostly reaches the wrong one."""

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from inference.api.service.server_control import server_status
from inference.bus.messages import EngineStatus, ModelInfo
from tests.api import wire
from tests.service import wait_until

ENDLESS = {"contents": ["The fox"], "temperature": 0, "max_tokens": 20_000, "stop_tokens": [], "chunk_size": 1}


class OpenStream:
    """A stream that is being read, frame by frame."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.text: dict[int, str] = {}
        self.ends: dict[int, str] = {}
        self.id = ""
        self.done = False
        self.read_frame()

    def read_frame(self) -> None:
        event = self._response.readline().removeprefix(b"data: ").strip()
        self._response.readline()
        if event == b"[DONE]":
            self.done = True
            return
        frame = json.loads(event)
        self.id = frame["id"]
        for choice in frame["choices"]:
            index = choice["index"]
            self.text[index] = self.text.get(index, "") + choice["delta"].get("content", "")
            if choice.get("finish_reason"):
                self.ends[index] = choice["finish_reason"]

    def read_to_end(self) -> "OpenStream":
        while not self.done:
            self.read_frame()
        return self


@contextmanager
def opened(api, path: str, body: dict) -> Iterator[OpenStream]:
    connection = http.client.HTTPConnection(urlsplit(api.url).netloc, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield OpenStream(response)
    finally:
        connection.close()


def batch(api, **more):
    return opened(api, "/v1/batch/completions", ENDLESS | more)


def status_of(api, request_id: str) -> dict | None:
    running = api.get("/v1/server/status").reply["active_requests"]
    return next((request for request in running if request["id"] == request_id), None)


def test_an_idle_server(two_webs):
    wait_until(lambda: not two_webs.get("/v1/server/status").reply["active_requests"], 30, "nothing runs")
    status = two_webs.get("/v1/server/status").reply
    assert (status["status"], status["api_version"]) == ("running", "1.0")
    assert status["model"] == {"id": "first", "name": "first", "path": "first"}
    assert status["active_request"] is None
    assert two_webs.get("/status").reply.keys() == status.keys()
    assert status["capabilities"]["pause_resume"] is True
    queue = status["prefill_queue"]
    assert queue["hard_max_bsz"] >= 1
    assert 1 <= queue["available_bsz"] <= queue["dynamic_max_bsz"]
    assert queue["total_vram_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "of this machine"
    assert 0 < queue["free_vram_bytes"] < queue["total_vram_bytes"]
    assert queue["bytes_per_bsz"] == 4 * 2 * (2 * 128 + 2 * 64 * 64), "two layers: shifts and WKV states in float32"


def test_engines_on_one_device_have_its_memory_together():
    info = ModelInfo(id="m", layers=1, width=64, vocab=65536, parameters=1, fingerprint="0" * 64)

    def engine(host: str, device: str, free: int) -> EngineStatus:
        status = EngineStatus(engine="e", state="ready", host=host, pid=1, started=0.0, updated=0.0, model=info)
        status.device, status.memory_free, status.memory_total, status.state_bytes = device, free, 100, 7
        return status

    engines = [
        engine("a", "cuda:0", 30),
        engine("a", "cuda:0", 30),
        engine("a", "cuda:1", 20),
        engine("b", "cuda:0", 9),
    ]
    queue = server_status(engines, [], [], []).prefill_queue
    assert (queue.free_vram_bytes, queue.total_vram_bytes, queue.bytes_per_bsz) == (59, 300, 7)
    queue = server_status([], [], [], []).prefill_queue
    assert (queue.free_vram_bytes, queue.total_vram_bytes, queue.bytes_per_bsz) == (0, 0, 0)


def test_running_requests_are_listed_by_every_process(two_webs):
    with batch(two_webs) as older, batch(two_webs, contents=["a", "b"], max_tokens=15_000) as newer:
        for _ in range(4):
            status = two_webs.get("/v1/server/status").reply
            assert [request["id"] for request in status["active_requests"]] == [older.id, newer.id]
            assert status["active_request"]["id"] == newer.id
        running = status["active_request"]
        assert running["endpoint"] == "batch.completions"
        assert running["model"] == "first"
        assert (running["prompt_tokens"], running["max_tokens"]) == (2, 30_000)
        assert running["generated_tokens"] >= 1
        assert running["prefill_progress"] == 1.0


def test_stopping_one_request_spares_the_others(two_webs):
    with batch(two_webs) as spared, batch(two_webs, contents=["a", "b"]) as stopped:
        reply = two_webs.post("/v1/server/stop", {"request_id": stopped.id}).reply
        assert (reply["ok"], reply["stopped"]) == (True, True)
        assert (reply["active_request"]["id"], reply["active_request"]["stop_requested"]) == (stopped.id, True)
        assert stopped.read_to_end().ends == {0: "stop", 1: "stop"}
        assert status_of(two_webs, stopped.id) is None
        before = spared.text[0]
        spared.read_frame()
        assert len(spared.text[0]) > len(before)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/openai/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ],
)
def test_a_chat_goes_by_the_id_of_its_stream(two_webs, path, prompt):
    with opened(two_webs, path, prompt | {"max_tokens": 20_000, "temperature": 0, "stop_tokens": []}) as stream:
        assert two_webs.post("/v1/server/pause", {"request_id": stream.id}).reply["paused"]
        assert stream.read_to_end().ends[0] == "stop"
    frames = two_webs.post("/v1/server/resume", {"request_id": stream.id, "max_tokens": 2}).frames
    assert frames[-1]["choices"][0]["finish_reason"] == "length"
    assert {frame["id"] for frame in frames} == {stream.id}


def test_the_last_request_is_told_by_every_process(two_webs):
    for number in range(2):
        session = {"session_id": f"last {number}"}
        two_webs.post("/state/chat/completions", ENDLESS | session | {"max_tokens": 3})
        for _ in range(4):
            last = two_webs.get("/v1/server/status").reply["last_request"]
            assert (last["state_key"], last["endpoint"]) == (f"last {number}", "state.chat.completions")
            assert (last["generated_tokens"], last["max_tokens"]) == (3, 3)
            assert last["created"] <= last["finished"]


def test_stopping_without_an_id_stops_all(two_webs):
    with batch(two_webs) as one, opened(two_webs, "/big_batch/completions", ENDLESS) as other:
        assert two_webs.post("/v1/server/stop", {}).reply["stopped"]
        assert one.read_to_end().ends == other.read_to_end().ends == {0: "stop"}


def test_stopping_what_does_not_run(two_webs):
    reply = two_webs.post("/v1/server/stop", {"request_id": "nobody"}).reply
    assert reply == {"ok": True, "stopped": False, "active_request": None}


def generated_before_pause(api, request_id: str) -> int:
    """Tokens of all rows together."""
    paused = {one["id"]: one for one in api.get("/v1/server/status").reply["paused_requests"]}
    return paused[request_id]["generated_tokens"]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 7, "top_p": 0.9}])
def test_a_resumed_request_goes_on_where_it_was(two_webs, sampling):
    body = {"contents": ["The fox", "Once"], "stop_tokens": ["no such text"], **sampling}
    with opened(two_webs, "/v1/batch/completions", body | {"max_tokens": 20_000, "chunk_size": 1}) as stream:
        reply = two_webs.post("/v1/server/pause", {"request_id": stream.id}).reply
        assert (reply["ok"], reply["paused"], reply["request_id"]) == (True, True, stream.id)
        stream.read_to_end()
    assert stream.ends == {0: "stop", 1: "stop"}
    generated = generated_before_pause(two_webs, stream.id)

    answer = two_webs.post("/v1/server/resume", {"request_id": stream.id, "max_tokens": 100})
    assert re.fullmatch(wire.single_stream(2), answer.body)
    assert {frame["id"] for frame in answer.frames} == {stream.id}
    whole = two_webs.post("/v1/batch/completions", body | {"max_tokens": generated + 100})  # neither row has more
    for choice in whole.reply["choices"]:
        index = choice["index"]
        rest = "".join(
            part["delta"].get("content", "")
            for frame in answer.frames
            for part in frame["choices"]
            if part["index"] == index
        )
        text = (stream.text[index] + rest).rstrip("\ufffd")  # half a character
        assert choice["message"]["content"].startswith(text)
    again = two_webs.post("/v1/server/resume", {"request_id": stream.id})
    assert (again.status, again.json) == (404, {"error": "Paused request not found"})


def test_the_newest_request_is_paused_when_none_is_named(two_webs):
    with batch(two_webs) as older, batch(two_webs) as newer:
        assert two_webs.post("/v1/server/pause", {}).reply["request_id"] == newer.id
        newer.read_to_end()
        assert status_of(two_webs, older.id)


def test_a_resumed_request_can_be_limited_changed_and_paused_again(two_webs):
    with batch(two_webs) as stream:
        two_webs.post("/v1/server/pause", {"request_id": stream.id})
        stream.read_to_end()
    with opened(two_webs, "/v1/server/resume", {"session_id": stream.id}) as resumed:
        assert resumed.id == stream.id
        assert status_of(two_webs, stream.id)["endpoint"] == "server.resume"
        two_webs.post("/v1/server/pause", {"request_id": stream.id})
        resumed.read_to_end()
    generated = generated_before_pause(two_webs, stream.id)
    last = two_webs.post("/v1/server/resume", {"request_id": stream.id, "max_tokens": 3, "top_k": 1}).frames
    assert last[-1]["choices"] == [{"delta": {}, "finish_reason": "length", "index": 0}]
    rest = "".join(frame["choices"][0]["delta"].get("content", "") for frame in last)
    whole = stream.text[0] + resumed.text[0] + rest
    body = ENDLESS | {"max_tokens": generated + 3}
    assert two_webs.post("/v1/batch/completions", body).reply["choices"][0]["message"]["content"] == whole


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("resume", {}, 400, "Missing request_id"),
        ("resume", {"request_id": "nobody"}, 404, "Paused request not found"),
        ("resume", {"request_id": "nobody", "max_tokens": 0}, 400, "max_tokens: expected an integer >= 1"),
        ("pause", {"request_id": "nobody"}, 404, "Running request not found"),
        ("stop", {"request_id": 1}, 400, "request_id: expected a string or null, got an integer"),
    ],
)
def test_errors(two_webs, path, body, status, message):
    answer = two_webs.post(f"/v1/server/{path}", body)
    assert (answer.status, answer.json) == (status, {"error": message})
