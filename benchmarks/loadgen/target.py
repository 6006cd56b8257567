"""Whom a load is sent to, and how one request of it looks on the wire."""

import os
from random import Random
from urllib.parse import urlsplit

import msgspec

from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.capture import Timeouts
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Backend, Prompt, RequestOptions
from benchmarks.loadgen.loopback import is_loopback
from benchmarks.loadgen.options import Profile

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "best_of",
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the key in its headers: it goes from process to process, and is never written down."""

    urls: list[str]  # of servers, without a path; taken in turn
    endpoint: str
    headers: dict[str, str]
    verify_tls: bool
    backend: str
    template: str
    options: RequestOptions
    timeouts: Timeouts
    lora_modules: list[str]
    lora_assignment: str
    request_id_prefix: str
    send_conversation_id: bool
    seed: int


class Request(msgspec.Struct, frozen=True):
    """Ready to be sent."""

    url: str
    headers: dict[str, str]
    body: bytes


def make_target(profile: Profile, *, run_id: str, synthetic: bool) -> Target:
    """`synthetic` prompts mean nothing, so that their answers are asked for in full length. Raises BadOption."""
    urls = [url.rstrip("/") for url in profile.base_url] or [f"http://{profile.host}:{profile.port}"]
    for url in urls:
        _check_allowed(url, profile.allow_host)
    backend = find_backend(profile.backend, profile.template)
    key = os.environ.get(profile.api_key_env, "")
    sampling = {name: getattr(profile, name) for name in SAMPLING if getattr(profile, name) is not None}
    if profile.use_beam_search:
        sampling["use_beam_search"] = True
    return Target(
        urls=urls,
        endpoint=profile.endpoint or backend.default_endpoint,
        headers={**({"Authorization": f"Bearer {key}"} if key else {}), **profile.header},
        verify_tls=not profile.insecure,
        backend=profile.backend,
        template=profile.template,
        options=RequestOptions(
            model=profile.served_model_name or profile.model,
            stream=profile.stream,
            ignore_eos=_ignores_eos(profile, synthetic),
            exact_length=profile.exact_length,
            logprobs=profile.logprobs,
            sampling=sampling,
            extra_body=profile.extra_body,
            chat_template_kwargs=profile.chat_template_kwargs,
        ),
        timeouts=Timeouts(
            connect=profile.connect_timeout_sec or None,
            first=profile.first_token_timeout_sec or None,
            total=profile.request_timeout_sec or None,
        ),
        lora_modules=profile.lora_modules,
        lora_assignment=profile.lora_assignment,
        request_id_prefix=profile.request_id_prefix or f"bench-{run_id[:8]}-",
        send_conversation_id=profile.send_conversation_id,
        seed=profile.seed,
    )


def find_backend(name: str, template: str) -> Backend:
    """Raises BadOption."""
    if template:
        from benchmarks.loadgen.backends.template import load_template

        try:
            return load_template(template)
        except (OSError, ValueError) as error:
            raise BadOption(f"--template: {error}") from None
    if name not in BACKENDS:
        raise BadOption(f"--backend: {name!r} is none of {', '.join(BACKENDS)}")
    return BACKENDS[name]


def make_request(target: Target, backend: Backend, prompt: Prompt, index: int) -> Request:
    """Raises ValueError for a prompt that the back end cannot carry."""
    options = target.options
    if target.lora_modules:
        options = msgspec.structs.replace(options, model=_lora(target, index))
    body = backend.body(prompt, options)
    headers = {**backend.headers, **target.headers, "x-request-id": f"{target.request_id_prefix}{index}"}
    if target.send_conversation_id and prompt.session:
        body["conversation_id"] = headers["X-Session-ID"] = prompt.session
    data, headers["Content-Type"] = backend.encode(body)
    return Request(target.urls[index % len(target.urls)] + target.endpoint, headers, data)


def _ignores_eos(profile: Profile, synthetic: bool) -> bool:
    if profile.ignore_eos is None:
        return synthetic or profile.exact_length
    return profile.ignore_eos


def _lora(target: Target, index: int) -> str:
    if target.lora_assignment == "round-robin":
        return target.lora_modules[index % len(target.lora_modules)]
    return Random(f"{target.seed}/lora/{index}").choice(target.lora_modules)


def _check_allowed(url: str, allowed: list[str]) -> None:
    """A load is an attack on whoever did not ask for it, so other machines must be named."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadOption(f"--base-url: {url!r} is not an http or https URL")
    if parts.hostname not in allowed and not is_loopback(parts.hostname):
        raise BadOption(
            f"--base-url: {parts.hostname} is not this machine; add --allow-host {parts.hostname} if you may load it"
        )
