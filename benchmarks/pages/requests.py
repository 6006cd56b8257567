"""The requests of a run, a page at a time."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.db.models import F
from django.urls import reverse

from benchmarks.models import RequestRecord, Run
from benchmarks.pages.words import number

PAGE_SIZE = 25
ORDERS = {
    "index": ("in order", F("index").asc()),
    "e2el": ("slowest", F("e2el").desc(nulls_last=True)),
    "ttft": ("latest first token", F("ttft").desc(nulls_last=True)),
}
HEADERS = ["#", "Phase", "User", "Sent, s", "TTFT, ms", "E2EL, ms", "Prompt", "Output", "HTTP", "End"]


def page(run: Run, query: Mapping[str, str]) -> dict[str, Any]:
    """`query` has `order` (a key of ORDERS), `failed` and `page`; defaults stand in for the rest."""
    order = query.get("order") if query.get("order") in ORDERS else "index"
    failed = query.get("failed") == "1"
    rows = run.records.with_times().defer("text", "chunks")
    rows = rows.exclude(error="") if failed else rows
    shown: Page[RequestRecord] = Paginator(rows.order_by(ORDERS[order][1], "pk"), PAGE_SIZE).get_page(query.get("page"))

    def address(**changes: object) -> str:
        wanted = {"order": order, "failed": int(failed), **changes}
        return f"{reverse('admin:benchmarks_run_requests', args=[run.pk])}?{urlencode(wanted)}"

    return {
        "table": {"headers": HEADERS, "rows": [_cells(row) for row in shown]},
        "count": shown.paginator.count,
        "first": shown.start_index(),
        "last": shown.end_index(),
        "previous": address(page=shown.previous_page_number()) if shown.has_previous() else "",
        "next": address(page=shown.next_page_number()) if shown.has_next() else "",
        "choices": [
            *((words, address(order=key), key == order) for key, (words, _) in ORDERS.items()),
            ("failed only", address(failed=int(not failed)), failed),
        ],
    }


def _cells(row: RequestRecord) -> list[str]:
    milliseconds = [None if value is None else 1000 * value for value in (row.ttft, row.e2el)]
    return [
        str(row.index),
        row.phase,
        number(row.user),
        number(row.sent, 3),
        *(number(value) for value in milliseconds),
        number(row.prompt_tokens),
        number(row.output_tokens),
        number(row.http_status),
        f"{row.error}: {row.error_text}"[:200] if row.error else row.finish_reason or "",
    ]
