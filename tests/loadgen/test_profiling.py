"""Servers that profile a load: from its begin to its end, and never longer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from benchmarks.loadgen import runner
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import Profile, checked_profile
from benchmarks.loadgen.watch import Live

COMPLETIONS, START, STOP = "/v1/completions", "/start_profile", "/stop_profile"
ANSWER = b'{"choices": [{"text": "a", "finish_reason": "stop"}]}'


class Server:
    """Answers whatever is posted, but for what it `refuses`; `paths` are those that it was asked, in order."""

    def __init__(self, refuses: str) -> None:
        self.paths: list[str] = []
        told, refused = self.paths, refuses

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(500 if self.path == refused else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(ANSWER)))
                self.end_headers()
                self.wfile.write(ANSWER)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@contextmanager
def serving(refuses: str = "") -> Iterator[Server]:
    server = Server(refuses)
    with server.http as http:
        Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            http.shutdown()


def profile(*servers: Server, **values: Any) -> Profile:
    small = {"num_prompts": 1, "random_input_len": 4, "random_output_len": 2, "tokenizer": "none", "stream": False}
    return checked_profile({"base_url": [server.url for server in servers], "profile": True, **small, **values})


def test_the_load_is_profiled_and_nothing_else() -> None:
    with serving() as server:
        result = runner.run(profile(server, num_warmups=1), kind="serve")
    assert server.paths == [COMPLETIONS, START, COMPLETIONS, STOP]
    assert result.environment["profiler"] == "stopped"


def test_without_a_profile_there_is_no_load_and_no_profiler_is_left() -> None:
    with ExitStack() as stack:
        willing, unwilling = stack.enter_context(serving()), stack.enter_context(serving(refuses=START))
        with pytest.raises(BadOption, match=f"--profile: {unwilling.url}{START} answered 500"):
            runner.run(profile(willing, unwilling), kind="serve")
    assert willing.paths == [START, STOP]
    assert COMPLETIONS not in unwilling.paths


def test_a_load_that_breaks_off_leaves_no_profiler() -> None:
    def break_off(live: Live) -> None:
        if live.state == "running":
            raise KeyboardInterrupt

    with serving() as server, pytest.raises(KeyboardInterrupt):
        runner.run(profile(server), kind="serve", report=break_off)
    assert server.paths[0] == START and server.paths.count(STOP) == 1  # what was due may come behind it


def test_a_profiler_that_does_not_stop_is_told() -> None:
    with ExitStack() as stack:
        stubborn, other = stack.enter_context(serving(refuses=STOP)), stack.enter_context(serving())
        result = runner.run(profile(stubborn, other, num_prompts=2), kind="serve")
    assert result.environment["profiler"] == f"--profile: {stubborn.url}{STOP} answered 500"
    assert other.paths[-1] == STOP
