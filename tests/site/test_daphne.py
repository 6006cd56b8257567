import errno
import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from rwkvsite.env import BASE_DIR
from tests.service import wait_until


@pytest.fixture
def start():
    servers = []

    def start(drain_seconds: float) -> tuple[subprocess.Popen, int]:
        command = [sys.executable, "-m", "tests.site.draining", str(drain_seconds)]
        server = subprocess.Popen(command, cwd=BASE_DIR, stdout=subprocess.PIPE, text=True)
        servers.append(server)
        return server, int(server.stdout.readline())

    yield start
    for server in servers:
        server.kill()
        server.communicate()


@contextmanager
def begun(port: int, path: str) -> Iterator[http.client.HTTPResponse]:
    """A response whose first chunk is here."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as response:
            assert response.read(6) == b"begun "
            yield response


@contextmanager
def in_handshake(server: subprocess.Popen, port: int) -> Iterator[None]:
    """A WebSocket that the application neither accepts nor refuses."""
    lines = ["GET / HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        assert server.stdout.readline() == "connecting\n"
        yield


def refuses(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_request_in_flight_finishes_and_new_ones_are_refused(start):
    server, port = start(drain_seconds=20)
    with begun(port, "/1.5") as response:
        server.terminate()
        wait_until(lambda: refuses(port), 5, "the server has seen the signal")
        assert response.read() == b"done"
    assert server.wait(20) == 0
    assert server.stdout.read() == "finished\n"


def test_what_outlasts_the_drain_is_told_that_its_client_is_gone(start):
    server, port = start(drain_seconds=0.2)
    with begun(port, "/600"):
        server.terminate()
        assert server.stdout.readline() == "disconnected\n"
        assert server.wait(20) == 0


def test_a_handshake_under_way_does_not_cut_the_requests_in_flight(start):
    server, port = start(drain_seconds=20)
    with begun(port, "/1.5") as response, in_handshake(server, port):
        server.terminate()
        wait_until(lambda: refuses(port), 5, "the server has seen the signal")
        assert response.read() == b"done"
    assert server.wait(20) == 0


def test_a_handshake_that_outlasts_the_drain_leaves_the_others_to_be_told(start):
    server, port = start(drain_seconds=0.2)
    with in_handshake(server, port), begun(port, "/600"):
        server.terminate()
        assert server.stdout.readline() == "disconnected\n"
        assert server.wait(20) == 0


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("path", "bound"), [("/0", 1_000_000), ("/0/files", 2_000_000), ("/0/files/?a=b", 2_000_000)])
def test_a_body_above_the_bound_is_refused_and_one_below_is_not(start, chunked, path, bound):
    _, port = start(drain_seconds=1)

    def send(size: int) -> tuple[int, bytes]:
        pieces = (bytes(1000) for _ in range(size // 1000))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("POST", path, pieces if chunked else bytes(size), encode_chunked=chunked)
            with connection.getresponse() as response:
                return response.status, response.read()

    assert send(bound + 1000) == (413, b'{"error":"the request body is larger than %d bytes"}' % bound)
    assert send(bound) == (200, b"begun done")


def test_a_web_process_loads_what_requests_need_before_it_serves():
    """Or else the first request takes most of a second, and so do all those that came with it."""
    program = (
        "import sys; from rwkvsite import asgi, daphne; daphne.load_ahead();"
        "from inference.text.tokenizer import get_tokenizer;"
        "print(get_tokenizer.cache_info().currsize, 'inference.api.openai.chat' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=BASE_DIR, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["1", "True"]
