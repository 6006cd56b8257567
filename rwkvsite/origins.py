"""Whether a page in a browser is one of this server's own."""

from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_own(origin: str, host: str) -> bool:
    """`origin` is what a browser says of the page, `host` the server's name and port as the same request has them."""
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        own = page.hostname == server.hostname and (page.port or default) == (server.port or default)
    except ValueError:  # a port that is none, or a bad address in brackets
        return False
    return own and default is not None
