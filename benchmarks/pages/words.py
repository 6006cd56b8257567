"""Numbers and values as the pages write them."""

import json
from typing import Any

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from benchmarks.models import Run

NOTHING = "–"


def number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes else f"{value:.1f} s"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def link_to(run: Run, words: str = "") -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse("admin:benchmarks_run_change", args=[run.pk]), words or run.key)


def load_of(run: Run) -> str:
    """The load in a few words: of a sweep its value, else users or rate."""
    options = run.configuration.get("options") or run.configuration.get("profile") or {}
    if run.is_of_sweep:
        return f"{run.configuration.get('sweep_option', 'swept')} {run.sweep_value:g}"
    if options.get("users"):
        return f"{options['users']} users"
    rate = options.get("request_rate")
    return f"{rate} requests/s" if rate not in (None, "inf") else "all at once"
