"""Daphne with an orderly end: `python -m rwkvsite.daphne FD` serves on the listening socket FD.

Stock Daphne cuts every stream at SIGTERM, and the views' `finally` blocks do not run. This server
stops listening, lets the requests in flight finish for DRAIN_SECONDS, then tells the rest that their
client is gone, which cancels them the way a real disconnect does.

Stock Daphne also takes bodies of any size, before anybody has asked who sends them. Here what is
above a bound is read past and answered with 413: LARGEST_BODY where files of batch jobs are
uploaded, and less everywhere else.
"""

import asyncio
import sys

# Daphne installs Twisted's asyncio reactor, so it comes before anything else of Twisted.
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet import defer, tcp

DRAIN_SECONDS = 10.0
DISCONNECT_SECONDS = 2.0
# How long after its client a request may end before it is cancelled. Django has cancelled it then, and a second time
# keeps a page whose thread waits for the database from giving back its connection, of which a process has few. For
# ever it must not be: on Python 3.11 the first cancellation can get lost in asyncio.wait_for.
CLOSE_SECONDS = 60
LARGEST_BODY = 202 * 2**20  # a batch file of 200 MB and what multipart adds
UPLOADS = b"/files"  # how the path of such an upload ends
PAGES = (b"/translate",)  # whose views tell a person when what a form announces is too large
MULTIPART_BYTES = 2**20  # what multipart and its other fields add to a file


class BoundedRequest(WebRequest):
    """A request whose body is kept up to the bound of its path, and which is left to the views to read.

    Twisted would look for a form in each, read the whole of one into memory, and hang up where it is broken.
    """

    largest = LARGEST_BODY  # where nothing is uploaded
    received = 0
    bound = LARGEST_BODY
    explained = False  # nothing of the body is kept, and the view sees by its announced length why

    def __init__(self, channel, *args, **kwargs) -> None:
        super().__init__(channel, *args, parsePOSTFormSubmission=False, **kwargs)

    def gotLength(self, length: int | None) -> None:
        # The request knows its own path only when its body is complete; the channel has read the first line.
        path = self.channel._path.partition(b"?")[0].rstrip(b"/")
        self.bound = LARGEST_BODY if path.endswith(UPLOADS) else self.largest
        self.explained = path in PAGES and length is not None and length > self.bound
        super().gotLength(0 if self.explained else length)

    def handleContentChunk(self, data: bytes) -> None:
        self.received += len(data)
        if self.received <= self.bound and not self.explained:
            super().handleContentChunk(data)

    def process(self) -> None:
        if self.received <= self.bound or self.explained:
            super().process()
            return
        self.setResponseCode(413)
        self.setHeader("Content-Type", "application/json")
        self.write(b'{"error":"the request body is larger than %d bytes"}' % self.bound)
        self.finish()


class PromptConnection(tcp.Server):
    """Sends at once what the kernel takes.

    Twisted asks the kernel first when it may write, and then not to be told so any more: two system calls and a turn
    of the loop for each frame of a stream.
    """

    def writeSequence(self, pieces) -> None:
        data = b"".join(pieces)
        if self.connected and not (self.disconnecting or self.dataBuffer or self._tempDataBuffer):
            sent = self.writeSomeData(data)
            if isinstance(sent, int):
                data = data[sent:]
        if data:
            super().write(data)


class DrainingServer(Server):
    def __init__(self, application, fd: int) -> None:
        endpoints = [f"fd:fileno={fd}"]
        super().__init__(application, endpoints, verbosity=0, application_close_timeout=CLOSE_SECONDS)
        self._ports: list = []

    def listen_success(self, port) -> None:
        super().listen_success(port)
        self._ports.append(port)
        port.transport = PromptConnection
        self.http_factory.buildProtocol = self._build_protocol

    def _build_protocol(self, address):
        protocol = HTTPFactory.buildProtocol(self.http_factory, address)
        protocol.requestFactory = BoundedRequest
        return protocol

    def kill_all_applications(self) -> defer.Deferred:
        """Called before the reactor stops, which waits for the result."""
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        for port in self._ports:
            port.stopListening()
        for protocol in self._busy():
            # A live page would never finish by itself. One whose handshake is under way cannot be closed.
            if isinstance(protocol, WebSocketProtocol) and protocol.state == protocol.STATE_OPEN:
                protocol.serverClose()
        await self._wait_for_applications(DRAIN_SECONDS)
        for protocol in self._busy():
            if isinstance(protocol, WebRequest):
                protocol.send_disconnect()
        await self._wait_for_applications(DISCONNECT_SECONDS)
        for details in self._busy().values():
            details["application_instance"].cancel()

    async def _wait_for_applications(self, seconds: float) -> None:
        tasks = [details["application_instance"] for details in self._busy().values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def _busy(self) -> dict:
        return {
            protocol: details
            for protocol, details in self.connections.items()
            if "application_instance" in details and not details["application_instance"].done()
        }


def load_ahead() -> None:
    """What a first request would load, with everybody else's waiting behind it: views and vocabulary."""
    from django.urls import get_resolver

    from inference.text.tokenizer import get_tokenizer

    _ = get_resolver().url_patterns
    get_tokenizer()


def main() -> None:
    from django.conf import settings

    from inference.garbage import keep_what_is_loaded
    from rwkvsite.asgi import application

    load_ahead()
    keep_what_is_loaded()
    BoundedRequest.largest = settings.RWKV.max_body_bytes + MULTIPART_BYTES
    server = DrainingServer(application, int(sys.argv[1]))
    server.run()
    sys.exit(1 if server.abort_start else 0)  # aborted: it could not listen


if __name__ == "__main__":
    main()
