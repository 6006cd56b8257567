"""A DrainingServer with an application that waits for as long as the path says: `/0.5`, `/60`.

It never accepts a WebSocket, and waits until its client is gone.
"""

import asyncio
import socket
import sys

from rwkvsite import daphne


async def application(scope, receive, send):
    if scope["type"] == "websocket":
        print("connecting", flush=True)
        await _disconnected(receive)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
    work = asyncio.create_task(asyncio.sleep(float(scope["path"].split("/")[1])))
    gone = asyncio.create_task(_disconnected(receive))
    done, _ = await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    print("finished" if work in done else "disconnected", flush=True)
    await send({"type": "http.response.body", "body": b"done"})


async def _disconnected(receive) -> None:
    while not (await receive())["type"].endswith(".disconnect"):
        pass


if __name__ == "__main__":
    daphne.DRAIN_SECONDS = float(sys.argv[1])
    daphne.BoundedRequest.largest = 1_000_000
    daphne.LARGEST_BODY = 2_000_000
    sock = socket.create_server(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    daphne.DrainingServer(application, sock.detach()).run()
