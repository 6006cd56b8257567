"""Which servers an eval may call, and what one says of itself."""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from benchmarks.evals.client import Client
from benchmarks.evals.errors import EvalError

LOAD_SECONDS = 1900.0  # a little more than the service itself waits for a model


class Server(msgspec.Struct, kw_only=True, frozen=True):
    """What a run is made against. Everything behind `model` is empty where the server does not tell."""

    base_url: str
    model: str
    fingerprint: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""  # of weights and activations, and of the states where that is another one


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _LoadedModel(msgspec.Struct):
    id: str
    fingerprint: str


class _Engine(msgspec.Struct):
    state: str
    model: _LoadedModel | None = None
    backend: str = ""
    device: str = ""
    dtype: str = ""


class _Stats(msgspec.Struct):
    engines: list[_Engine]


def check_target(url: str, allowed_hosts: Collection[str] = ()) -> str:
    """The URL without `/v1` and slashes at its end. Raises EvalError for one that must not be called.

    A host must be this machine or one that was allowed by name: an address typed into a page of the
    admin is called from inside the operator's network.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EvalError(f"base-url: {url!r} is not an http or https URL")
    if parts.username or parts.password:
        raise EvalError("base-url: a password does not belong in it; give the key in the environment")
    if not _is_loopback(parts.hostname) and parts.hostname not in allowed_hosts:
        raise EvalError(f"base-url: {parts.hostname} is not this machine; allow it with --allow-host {parts.hostname}")
    return url.rstrip("/").removesuffix("/v1")


async def load_model(client: Client, model: str) -> None:
    """Have the service change to another checkpoint of its folder. Raises EvalError."""
    await client.post("/v1/model/load", {"model": model}, dict[str, Any], seconds=LOAD_SECONDS)


async def read_server(client: Client, model: str = "") -> Server:
    """The loaded model called `model`, or the first one. Raises EvalError when it is not loaded."""
    listed = [entry.id for entry in (await client.get("/v1/models", _Models)).data]
    if not listed:
        raise EvalError(f"{client.base_url}: no model is loaded")
    if model and model not in listed:
        raise EvalError(f"model: {model!r} is not loaded at {client.base_url}, which has {', '.join(listed)}")
    chosen = model or listed[0]
    stats = await client.get("/stats", _Stats, optional=True)
    for engine in stats.engines if stats else []:
        if engine.state == "ready" and engine.model and engine.model.id == chosen:
            return Server(
                base_url=client.base_url,
                model=chosen,
                fingerprint=engine.model.fingerprint,
                backend=engine.backend,
                device=engine.device,
                dtype=engine.dtype,
            )
    return Server(base_url=client.base_url, model=chosen)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
