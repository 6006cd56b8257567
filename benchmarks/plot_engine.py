"""Draw tokens per second against rows from the reports of `manage.py bench_engine`, as an SVG."""

import json
import sys
from pathlib import Path

from benchmarks import charts
from benchmarks.charts import Series, standalone

# Tokens per second by rows of Albatross faster3a, forward pass alone: measured in November 2026 on the same kind of
# GPU with a random checkpoint of the same shape. These are not from the report that is drawn.
PEERS = {
    "best other engine": {
        1: 265, 2: 470, 4: 727, 8: 1224, 16: 2202, 32: 4619, 64: 8884, 128: 14754, 256: 20631, 320: 21154, 512: 25880,
        960: 27693,
    },
}  # fmt: skip


def decode_lines(report: dict) -> dict[str, dict[int, float]]:
    """Label -> rows -> tokens per second."""
    decodes = [one for one in report["results"] if one["case"].endswith("x1")]
    rows = {one["case"]: int(one["case"].split("x")[0]) for one in decodes}
    return {
        "forward pass": {rows[one["case"]]: one["tok_s"] for one in decodes},
        "with sampling": {rows[one["case"]]: one["sampled_tok_s"] for one in decodes},
        **PEERS,
        "bound": {rows[one["case"]]: one["bound_tok_s"] for one in decodes},
    }


def draw(title: str, lines: dict[str, dict[int, float]]) -> str:
    """Both axes are logarithmic."""
    series = [Series(label, sorted(line.items()), dashed=label == "bound") for label, line in lines.items()]
    axes = {"x_label": "rows decoded at once", "y_label": "tokens/s"}
    return standalone(charts.line(series, title=title, x_scale="log", y_scale="log", **axes))


def main() -> None:
    """`python -m benchmarks.plot_engine REPORT.json OUT.svg`"""
    report, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    title = f"Decode, {report['model']['parameters'] / 1e9:.1f}B parameters in fp16 on one {report['machine']['gpu']}"
    out.write_text(draw(title, decode_lines(report)))


if __name__ == "__main__":
    main()
