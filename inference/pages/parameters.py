"""The sampling parameters as the playground's form shows them: one input for each field of a request."""

from dataclasses import dataclass
from typing import Literal

from django.conf import settings
from django.utils.translation import gettext as _

from inference.api.edge.schemas import MAX_TOKEN_ID

# How the page's scripts turn what is typed into JSON (static/inference/playground/parameters.js).
Kind = Literal["number", "lines", "ids", "biases", "flag"]

IDS = r"\s*(\d+\s*(,\s*\d+\s*)*)?"
BIASES = r"\s*(\d+\s*:\s*-?\d+(\.\d+)?\s*(,\s*\d+\s*:\s*-?\d+(\.\d+)?\s*)*)?"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`field` is the request's; `minimum`, `maximum` and `pattern` are what the browser lets through."""

    field: str
    label: str
    kind: Kind = "number"
    minimum: float | None = None
    maximum: float | None = None
    whole: bool = False
    value: int | None = None
    hint: str = ""
    pattern: str = ""


def main_parameters() -> list[Parameter]:
    most = settings.RWKV.max_new_tokens
    return [
        Parameter("max_tokens", _("Most new tokens"), minimum=1, maximum=most, whole=True, value=min(256, most)),
        Parameter("temperature", _("Temperature"), minimum=0, maximum=1000),
        Parameter("top_p", "Top-p", minimum=0, maximum=1),
        Parameter("top_k", "Top-k", minimum=0, maximum=MAX_TOKEN_ID, whole=True),
        Parameter("alpha_presence", _("Presence (α)")),
        Parameter("alpha_frequency", _("Frequency (α)")),
        Parameter("alpha_decay", _("Decay (α)"), minimum=0, maximum=1),
        Parameter("seed", _("Seed"), whole=True),
    ]


def more_parameters() -> list[Parameter]:
    return [
        Parameter("min_p", "Min-p", minimum=0, maximum=1),
        Parameter("presence_penalty", _("Presence (OpenAI)"), minimum=-2, maximum=2),
        Parameter("frequency_penalty", _("Frequency (OpenAI)"), minimum=-2, maximum=2),
        Parameter("repetition_penalty", _("Repetition"), minimum=0.001, maximum=1000),
        Parameter("min_tokens", _("Fewest tokens"), minimum=0, whole=True),
        Parameter("stop", _("Stop texts"), "lines", hint=_("One on each line; \\n stands for a line break.")),
        Parameter("stop_token_ids", _("Stop tokens"), "ids", pattern=IDS, hint=_("Token ids, such as 261, 24281.")),
        Parameter("logit_bias", _("Logit bias"), "biases", pattern=BIASES, hint=_("Id:bias, such as 261:-5, 11:2.")),
        Parameter("ignore_eos", _("Go on behind the end of text"), "flag"),
        Parameter("include_stop_str_in_output", _("Show the stop text"), "flag"),
    ]
