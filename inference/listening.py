"""The sockets on which web processes listen."""

import errno
import socket

BACKLOG = 4096  # Twisted's own 50 makes a burst of clients wait for seconds


class CannotListen(Exception):
    """One line that names host, port and reason."""


def open_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one port, between which the kernel spreads connections evenly.

    One socket shared by all processes would not do: whoever wakes first accepts everything. Raises
    CannotListen.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # SO_REUSEPORT would let a second server of the same user join the port without a word.
        _listen(socket.socket(family, kind, protocol), address, shared=False).close()
        return [_listen(socket.socket(family, kind, protocol), address, shared=True) for _ in range(count)]
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"PORT {port} on {host} is already in use: stop what uses it, or set PORT") from None
        raise CannotListen(f"cannot listen on HOST {host}, PORT {port}: {error}") from None


def _listen(sock: socket.socket, address: tuple, *, shared: bool) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
