"""A workbook with the summary, the requests, the seconds of the run and its configuration, a sheet each."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

import msgspec
from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Font

from benchmarks.loadgen import metrics
from benchmarks.loadgen.exports import request_rows
from benchmarks.loadgen.exports.flat import flatten
from benchmarks.loadgen.exports.spreadsheet import safe
from benchmarks.loadgen.records import RunResult

MOST_ROWS = 1_048_575  # of a sheet, below its header
CONTROL = {code: None for code in range(32) if chr(code) not in "\t\n\r"}  # a workbook refuses these


def write(result: RunResult) -> bytes:
    """Requests beyond what a sheet can hold are left out."""
    book = Workbook(write_only=True)
    run = {name: getattr(result, name) for name in ("run_id", "kind", "started_at", "duration", "cancelled")}
    health = msgspec.to_builtins(result.health)
    _sheet(book, "Summary", ("figure", "value"), flatten({**run, "health": health, **result.summary}))
    requests = (list(request_rows.to_row(record).values()) for record in result.records[:MOST_ROWS])
    _sheet(book, "Requests", request_rows.COLUMNS, requests)
    buckets = metrics.time_buckets(result.records)
    columns = tuple(buckets[0]) if buckets else ("second",)
    _sheet(book, "Buckets", columns, (list(bucket.values()) for bucket in buckets))
    settings = {"profile": result.profile, "environment": result.environment, "server": result.server}
    _sheet(book, "Configuration", ("setting", "value"), flatten(settings))
    out = BytesIO()
    book.save(out)
    return out.getvalue()


def _sheet(book: Workbook, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    sheet = book.create_sheet(title)
    sheet.freeze_panes = "B2"
    head = [WriteOnlyCell(sheet, column) for column in columns]
    for cell in head:
        cell.font = Font(bold=True)
    sheet.append(head)
    for row in rows:
        sheet.append([safe(value.translate(CONTROL)) if isinstance(value, str) else value for value in row])
