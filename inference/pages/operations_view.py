"""The operations page as HTML, in parts that are refreshed on their own, in the language that is active."""

import time
from datetime import UTC, datetime

from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from inference.api.service.health import summarise_stats
from inference.bus.messages import EngineStatus, ErrorRecord
from inference.bus.operations import HISTORY_SECONDS, read_samples
from inference.pages.operations import LiveRequest, Snapshot, connect
from inference.pages.operations_charts import draw_charts

TEMPLATES = "admin/inference/engine/"
REQUESTS_SHOWN = 50  # one page is for a look; the rest is counted
NOTHING = "–"

Row = tuple[str, list[object]]  # the id of its element, "" for none, and its cells
Table = dict[str, list[str] | list[Row]]


def render_now(snapshot: Snapshot) -> SafeString:
    """What changes with every look."""
    now = time.time()
    more = len(snapshot.requests) - REQUESTS_SHOWN
    context = {
        "failure": snapshot.failure,
        "cards": _cards(snapshot),
        "requests": _requests(snapshot.requests[:REQUESTS_SHOWN], now),
        "more": ngettext("and %(count)d more", "and %(count)d more", more) % {"count": more} if more > 0 else "",
        "engines": _engines(snapshot.engines),
        "loading": [
            (status.engine, round(100 * status.progress)) for status in snapshot.engines if status.state == "loading"
        ],
        "levels": _levels(snapshot),
        "queues": {
            "headers": [_("Model"), _("Interactive rows waiting"), _("Offline rows waiting")],
            "rows": [("", [queue.model, queue.interactive, queue.offline]) for queue in snapshot.queues],
        },
        "errors": _errors(snapshot.errors),
    }
    return render_to_string(f"{TEMPLATES}now.html", context)


def render_charts() -> SafeString:
    """The last hour. Raises redis.RedisError."""
    now = time.time()
    with connect() as connection:
        samples = read_samples(connection, now - HISTORY_SECONDS)
    return render_to_string(f"{TEMPLATES}charts.html", {"charts": draw_charts(samples, now)})


def _cards(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    """(name, figure, unit) of the whole service."""
    stats = summarise_stats(snapshot.engines)
    queued = sum(queue.interactive + queue.offline for queue in snapshot.queues)
    return [
        (_("New tokens"), f"{stats.generated_tokens_per_second:,.1f}", _("tokens/s")),
        (_("Prompt tokens"), f"{stats.prompt_tokens_per_second:,.1f}", _("tokens/s")),
        (_("Time to first token, p50"), _slowest(snapshot.engines, "ttft_ms_p50"), _("ms, last minute")),
        (_("Time to first token, p99"), _slowest(snapshot.engines, "ttft_ms_p99"), _("ms, last minute")),
        (_("Rows running"), f"{stats.running:,}", _("of %(slots)s slots") % {"slots": f"{stats.slots:,}"}),
        (_("Rows waiting"), f"{stats.waiting + queued:,}", ""),
        (_("Prefix cache"), f"{stats.prefix_hit_rate:.1%}", _("of prompt tokens")),
    ]


def _slowest(engines: list[EngineStatus], name: str) -> str:
    return _ms(max((value for status in engines if (value := getattr(status, name)) is not None), default=None))


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _requests(requests: list[LiveRequest], now: float) -> Table:
    states = {"queued": _("queued"), "waiting": _("waiting"), "prefill": _("prefill"), "decode": _("decode")}
    return {
        "headers": [
            _("Request"),
            _("Endpoint"),
            _("State"),
            _("Rows"),
            _("Prompt tokens"),
            _("Generated"),
            _("Age"),
            _("Action"),
        ],
        "rows": [
            (
                f"request-{request.id}",
                [
                    request.id or NOTHING,
                    request.endpoint,
                    states[request.state],
                    request.rows or NOTHING,
                    _of(request.prefilled_tokens, request.prompt_tokens),
                    _of(request.generated_tokens, request.max_tokens),
                    f"{max(0.0, now - request.created):.0f} s",
                    _cancel_button(request.id),
                ],
            )
            for request in requests
        ],
    }


def _of(part: int, whole: int) -> str:
    return _("%(part)s of %(whole)s") % {"part": f"{part:,}", "whole": f"{whole:,}"}


def _cancel_button(request_id: str) -> SafeString:
    # The form is on the page and not in here: what is refreshed carries no CSRF token, and everybody gets the same.
    html = (
        '<button type="submit" form="cancel" name="request" value="{0}" id="cancel-{0}" class="op-cancel" '
        'aria-label="{1}">{2}</button>'
    )
    label = _("Cancel request %(id)s") % {"id": request_id}
    return format_html(html, request_id, label, _("Cancel")) if request_id else format_html("")


def _engines(engines: list[EngineStatus]) -> Table:
    states = {"loading": _("loading"), "ready": _("ready"), "draining": _("draining")}
    return {
        "headers": [
            _("Engine"),
            _("State"),
            _("Model"),
            _("Back end"),
            _("Running"),
            _("Waiting"),
            _("Step"),
            _("Tokens/s, new / prompt"),
            _("TTFT p50 / p99"),
        ],
        "rows": [
            (
                f"engine-{status.engine}",
                [
                    status.engine,
                    states[status.state],
                    _model(status),
                    f"{status.backend}, {status.device}" if status.backend else NOTHING,
                    _of(status.running, status.slots),
                    status.waiting,
                    f"{status.step_ms:.2f} ms",
                    f"{status.generated_tokens_per_second:,.1f} / {status.prompt_tokens_per_second:,.1f}",
                    f"{_ms(status.ttft_ms_p50)} / {_ms(status.ttft_ms_p99)} ms",
                ],
            )
            for status in engines
        ],
    }


def _model(status: EngineStatus) -> str:
    if status.model is None:
        return NOTHING
    size = f"{status.model.id}, {status.model.parameters / 1e6:,.1f} M"
    return _("%(model)s (random weights)") % {"model": size} if status.model.random else size


def _levels(snapshot: Snapshot) -> Table:
    """Where states are: L1 and L2 are the engines' memory, L3 is the database."""
    durable = snapshot.durable
    rows: list[Row] = [
        (
            f"levels-{status.engine}",
            [
                status.engine,
                len(status.device_states),
                len(status.host_states),
                NOTHING,
                f"{status.state_hits:,}",
                f"{status.state_loads:,}",
                f"{status.cached_tokens / max(status.cached_tokens + status.prompt_tokens, 1):.1%}",
            ],
        )
        for status in snapshot.engines
    ]
    if durable:
        stored = _("%(sessions)s sessions, %(size)s") % {
            "sessions": f"{durable.sessions:,}",
            "size": filesizeformat(durable.snapshot_bytes),
        }
        rows.append(("", [_("Database"), NOTHING, NOTHING, stored, NOTHING, NOTHING, NOTHING]))
    return {
        "headers": [
            _("Where"),
            _("L1, on the device"),
            _("L2, in memory"),
            _("L3, in the database"),
            _("Found in L1 or L2"),
            _("Loaded from L3"),
            _("Prefix cache"),
        ],
        "rows": rows,
    }


def _errors(errors: list[ErrorRecord]) -> Table:
    return {
        "headers": [_("Time (UTC)"), _("Where"), _("Status"), _("Request"), _("Message")],
        "rows": [
            (
                "",
                [
                    f"{datetime.fromtimestamp(error.time, UTC):%Y-%m-%d %H:%M:%S}",
                    error.where,
                    error.status or NOTHING,
                    error.request_id or NOTHING,
                    error.message,
                ],
            )
            for error in errors
        ],
    }
