"""How speculative decoding did in a run, from the counters of the server's /metrics before and after it."""

import re
from collections.abc import Mapping
from typing import Any

FIELDS = (
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "spec_decode_num_drafts",
    "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
    "spec_decode_per_position_acceptance_rates",
)
_SAMPLE = re.compile(r"vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{(.*)\})?")
_POSITION = re.compile(r'position="(\d+)"')


def of_server(server: Mapping[str, Any]) -> dict[str, Any]:
    """All FIELDS: None unless the server drafted something in this run.

    The rate is accepted / drafted tokens in percent, the length 1 + accepted tokens / drafts.
    """
    if "spec_decode" in server:  # as an imported file said it
        return {name: server["spec_decode"].get(name) for name in FIELDS}
    before, after = (_counters(server.get(moment) or {}) for moment in ("before", "after"))
    grown = {name: count - before.get(name, 0.0) for name, count in after.items()}
    drafts, drafted = grown.get("drafts", 0.0), grown.get("draft_tokens", 0.0)
    accepted = grown.get("accepted_tokens", 0.0)
    if not drafts or not drafted:
        return dict.fromkeys(FIELDS)
    positions = sorted(name for name in grown if isinstance(name, int))
    values = (
        accepted / drafted * 100,
        1 + accepted / drafts,
        round(drafts),
        round(drafted),
        round(accepted),
        [grown[position] / drafts for position in positions],
    )
    return dict(zip(FIELDS, values, strict=True))


def _counters(page: Mapping[str, Any]) -> dict[str | int, float]:
    """By name, and by position for the tokens accepted there; summed over what else labels tell apart."""
    found: dict[str | int, float] = {}
    for sample, value in (page.get("metrics") or {}).items():
        if not (match := _SAMPLE.fullmatch(sample)):
            continue
        name: str | int = match[1]
        if name == "accepted_tokens_per_pos":
            position = _POSITION.search(match[2] or "")
            if position is None:
                continue
            name = int(position[1])
        found[name] = found.get(name, 0.0) + value
    return found
