"""From a body's fields to the engine's `Sampling` and stops, with the defaults of each route."""

import hashlib
import secrets
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import MAX_TOKEN_ID, SamplingFields
from inference.bus.messages import END_OF_TEXT, MAX_LOGIT_EDITS, MAX_STOP_IDS, Sampling

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
    chunk_size: int | None = None  # new tokens in a frame: native clients compute speeds from it


TURN_END = ("\nUser:",)
OLD_STOPS = (0, 261, 24281)  # end of text, "\n\n", "User"

COMPLETION = Defaults(16)
CHAT = Defaults(4096, top_k=20, top_p=0.6, presence=1.0, frequency=0.1, decay=0.996, stops=TURN_END)
# The native routes: V1, FIM and V3 as the Python server has them, V2 as its newer version, BATCH as the C++ server.
NATIVE = Defaults(8192, top_k=50, top_p=0.6, presence=2.0, frequency=0.2, decay=0.996, stops=TURN_END, chunk_size=4)
FIM = replace(NATIVE, stops=())
V2 = Defaults(8192, top_k=500, top_p=0.5, presence=1.0, frequency=0.1, decay=0.99, stops=TURN_END, chunk_size=32)
V3 = replace(NATIVE, chunk_size=32)
BATCH = Defaults(8192, top_k=20, top_p=0.3, presence=2.0, frequency=0.2, decay=0.996, stops=OLD_STOPS, chunk_size=8)
BIG_BATCH = Defaults(8192, stops=TURN_END, chunk_size=4)
TRANSLATION = Defaults(2048, top_k=1, top_p=0.0)


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
    (a client that measures wants a fixed length) turns both off. Raises InvalidRequest when an engine has no room for
    them.
    """
    stops = Stops()
    if not fields.ignore_eos:
        stops.add(END_OF_TEXT)
        stops.add(defaults.stops if fields.stop_tokens is None else None)
    stops.add(fields.stop_tokens)
    stops.add(fields.stop)
    stops.add(fields.stop_token_ids)
    ids = [stop for stop in dict.fromkeys(stops.ids) if stop != END_OF_TEXT or not fields.ignore_eos]
    if len(ids) > MAX_STOP_IDS:
        raise InvalidRequest(
            f"stop_token_ids: expected at most {MAX_STOP_IDS} ids, with those of stop_tokens and of the route, "
            f"got {len(ids)}",
            param="stop_token_ids",
        )
    return Stops(ids, list(dict.fromkeys(stops.texts)))


def build_sampling(
    fields: SamplingFields, defaults: Defaults, choice: int, bans: list[tuple[int, int]] | None = None
) -> Sampling:
    """How the tokens of one choice are drawn. `choice` is its index in the reply.

    OpenAI's penalties win over the native ones when a body has both. The route's default penalties
    are there to make sampling lively: they do not apply at temperature 0, which asks for the model's
    own best tokens. Raises InvalidRequest.
    """
    _check_edits(fields, bans or [])
    temperature = usable_temperature(fields.temperature)
    common = {
        "temperature": temperature,
        "top_k": usable_top_k(_given(fields.top_k, defaults.top_k)),
        "top_p": usable_top_p(_given(fields.top_p, defaults.top_p)),
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


def build_gumbel(fields: SamplingFields, defaults: Defaults, choice: int) -> Sampling:
    """How the big batch draws: from softmax(logits / T) by Gumbel noise, and greedily for T <= 0."""
    temperature, seed = usable_temperature(fields.temperature), choice_seed(fields.seed, choice)
    return Sampling(method="gumbel", temperature=temperature, seed=seed)


def usable_temperature(given: float | None) -> float:
    """Within the kernels' range; 0, which means greedy, for 0 and less; 1 where nothing is given."""
    if given is None:
        return 1.0
    return min(max(given, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE) if given > 0 else 0.0


def usable_top_k(given: int) -> int:
    return given if 0 < given <= MAX_TOKEN_ID else 0  # outside: no limit, as in the older servers


def usable_top_p(given: float) -> float:
    return given if 0 <= given <= 1 else 1.0


def change_sampling(sampling: Sampling, fields: SamplingFields) -> Sampling:
    """`sampling` with the native fields that the body gives."""
    given = {
        "temperature": None if fields.temperature is None else usable_temperature(fields.temperature),
        "top_k": None if fields.top_k is None else usable_top_k(fields.top_k),
        "top_p": None if fields.top_p is None else usable_top_p(fields.top_p),
        "presence": fields.alpha_presence,
        "frequency": fields.alpha_frequency,
        "decay": fields.alpha_decay,
    }
    return msgspec.structs.replace(sampling, **{name: value for name, value in given.items() if value is not None})


def choice_seed(seed: int | None, choice: int) -> int:
    """63 bits: random, or the same for the same seed and choice."""
    if seed is None:
        return secrets.randbits(63)
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _check_edits(fields: SamplingFields, bans: list[tuple[int, int]]) -> None:
    room = MAX_LOGIT_EDITS - len(bans) - (MAX_STOP_IDS if fields.min_tokens else 0)
    if len(fields.logit_bias or ()) > room:
        raise InvalidRequest(
            f"logit_bias: expected at most {room} entries with the other fields of this request, "
            f"got {len(fields.logit_bias or ())}",
            param="logit_bias",
        )


def _given(value: N | None, default: N) -> N:
    return default if value is None else value
