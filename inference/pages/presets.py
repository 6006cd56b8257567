"""The sampling presets that the playground offers: the defaults of the RWKV routes, by the names people know them."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from inference.api.generating import sampling
from inference.api.generating.sampling import Defaults


@dataclass(frozen=True, slots=True)
class Preset:
    """Values of a request's fields; a field that is not named is left to the server."""

    key: str
    name: str
    values: dict[str, Any]


def presets() -> list[dict[str, Any]]:
    """In the order in which they are shown, as JSON."""
    return [{"key": preset.key, "name": preset.name, "values": preset.values} for preset in _presets()]


def _presets() -> list[Preset]:
    return [
        Preset("server", _("Server's defaults"), {}),
        Preset("chat", _("RWKV chat"), _values(sampling.CHAT)),
        Preset("native", _("RWKV batch (v1)"), _values(sampling.NATIVE)),
        Preset("v2", _("RWKV batch (v2)"), _values(sampling.V2)),
        Preset("conservative", _("RWKV careful (C++)"), _values(sampling.BATCH)),
        Preset("plain", _("The model's own distribution"), _values(sampling.COMPLETION)),
        Preset("greedy", _("Greedy: always the likeliest"), {"temperature": 0}),
    ]


def _values(defaults: Defaults) -> dict[str, Any]:
    return {
        "temperature": 1.0,
        "top_p": defaults.top_p,
        "top_k": defaults.top_k,
        "alpha_presence": defaults.presence,
        "alpha_frequency": defaults.frequency,
        "alpha_decay": defaults.decay,
    }
