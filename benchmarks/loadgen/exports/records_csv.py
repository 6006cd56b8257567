"""A row for each request, warm-up included."""

import csv
from io import StringIO

from benchmarks.loadgen.exports.request_rows import COLUMNS, to_row
from benchmarks.loadgen.exports.spreadsheet import safe
from benchmarks.loadgen.records import RunResult


def write(result: RunResult) -> bytes:
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in result.records:
        writer.writerow({name: safe(value) for name, value in to_row(record).items()})
    return out.getvalue().encode()
