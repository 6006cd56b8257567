"""Which servers the console may send load to: this machine, and the origins that the operator has named.

Whoever may edit a target could otherwise have the worker's host knock at any address of its network.
"""

from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError

from benchmarks.loadgen.loopback import is_loopback

DEFAULT_PORTS = {"http": 80, "https": 443}


def check_target_url(url: str) -> None:
    """Raises ValidationError, which says what is wrong with the address of a target."""
    try:
        parts = urlsplit(url)
        origin = _origin(parts)
    except ValueError as error:
        raise ValidationError(f"{url!r} is no address: {error}") from None
    if origin is None:
        raise ValidationError(f"must begin with http:// or https:// and a host, not {url!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("must have neither a user nor a query nor a fragment")
    if is_loopback(parts.hostname or "") or origin in map(_origin, map(urlsplit, settings.RWKV.benchmark_targets)):
        return
    raise ValidationError(f"{parts.scheme}://{parts.netloc} is neither on loopback nor in BENCHMARK_TARGETS")


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme]
