"""From a body's fields to the engine's `Sampling` and stops, with the defaults of each route."""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TypeVar

from inference.api.schemas import MAX_TOKEN_ID, SamplingFields
from inference.bus.messages import END_OF_TEXT, Sampling

N = TypeVar("N", int, float)

# The range within which the older servers' kernels accept a temperature; 0 means greedy.
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.001, 1000.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a route assumes where the body says nothing."""

    max_tokens: int
    top_k: int = 0
    top_p: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    decay: float = 1.0
    stops: tuple[int | str, ...] = ()


NATIVE = Defaults(8192, top_k=50, top_p=0.6, presence=2.0, frequency=0.2, decay=0.996, stops=("\nUser:",))
CHAT = Defaults(4096, top_k=20, top_p=0.6, presence=1.0, frequency=0.1, decay=0.996, stops=("\nUser:",))
COMPLETION = Defaults(16)


@dataclass(slots=True)
class Stops:
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, stops: list[int] | list[str] | list[int | str] | tuple[int | str, ...] | int | str | None) -> None:
        """An integer is a token id, a string is text. None and the empty string stop nothing."""
        for stop in [stops] if isinstance(stops, int | str) else stops or ():
            if isinstance(stop, int):
                self.ids.append(stop)
            elif stop:
                self.texts.append(stop)


def collect_stops(fields: SamplingFields, defaults: Defaults) -> Stops:
    """`stop`, `stop_tokens` and `stop_token_ids` together, without repeats.

    The end of text always stops, and without `stop_tokens` so do the route's own stops; `ignore_eos`
    (a client that measures wants a fixed length) turns both off.
    """
    stops = Stops()
    if not fields.ignore_eos:
        stops.add(END_OF_TEXT)
        stops.add(defaults.stops if fields.stop_tokens is None else None)
    stops.add(fields.stop_tokens)
    stops.add(fields.stop)
    stops.add(fields.stop_token_ids)
    ids = [stop for stop in dict.fromkeys(stops.ids) if stop != END_OF_TEXT or not fields.ignore_eos]
    return Stops(ids, list(dict.fromkeys(stops.texts)))


def build_sampling(
    fields: SamplingFields, defaults: Defaults, choice: int, bans: list[tuple[int, int]] | None = None
) -> Sampling:
    """How the tokens of one choice are drawn. `choice` is its index in the reply.

    OpenAI's penalties win over the native ones when a body has both. The route's default penalties
    are there to make sampling lively: they do not apply at temperature 0, which asks for the model's
    own best tokens.
    """
    temperature = 1.0 if fields.temperature is None else fields.temperature
    if temperature:
        temperature = min(max(temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE)
    top_k, top_p = _given(fields.top_k, defaults.top_k), _given(fields.top_p, defaults.top_p)
    common = {
        "temperature": temperature,
        "top_k": top_k if 0 < top_k <= MAX_TOKEN_ID else 0,  # outside: no limit, as in the older servers
        "top_p": top_p if 0 <= top_p <= 1 else 1.0,
        "min_p": _given(fields.min_p, 0.0),
        "repetition": _given(fields.repetition_penalty, 1.0),
        "seed": choice_seed(fields.seed, choice),
        "logit_bias": fields.logit_bias or {},
        "min_tokens": fields.min_tokens or 0,
        "bans": bans or [],
    }
    if fields.presence_penalty is not None or fields.frequency_penalty is not None:
        return Sampling(
            penalty="openai",
            presence=fields.presence_penalty or 0.0,
            frequency=fields.frequency_penalty or 0.0,
            **common,
        )
    return Sampling(
        penalty="native",
        presence=_given(fields.alpha_presence, defaults.presence if temperature else 0.0),
        frequency=_given(fields.alpha_frequency, defaults.frequency if temperature else 0.0),
        decay=_given(fields.alpha_decay, defaults.decay),
        **common,
    )


def choice_seed(seed: int | None, choice: int) -> int:
    """63 bits: random, or the same for the same seed and choice."""
    if seed is None:
        return secrets.randbits(63)
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _given(value: N | None, default: N) -> N:
    return default if value is None else value
