"""Draw tokens per second against rows from the reports of `manage.py bench_engine`, as an SVG."""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
COLOURS = ("#1d4ed8", "#0891b2", "#b45309", "#6b7280")

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
    xs = sorted({x for line in lines.values() for x in line})
    ys = [y for line in lines.values() for y in line.values()]
    low, high = math.floor(math.log10(min(ys)) * 2) / 2, math.ceil(math.log10(max(ys)) * 2) / 2

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log2(x / xs[0]) / math.log2(xs[-1] / xs[0])
        up = (math.log10(y) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for x in xs:
        px, _ = at(x, 10**low)
        parts.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        if x in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 960):
            parts.append(f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x}</text>')
    for power in [p / 2 for p in range(round(low * 2), round(high * 2) + 1)]:
        _, py = at(xs[0], 10**power)
        label = f"{round(10**power, -2 if power >= 3 else -1):,.0f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{label}</text>')
    for number, (label, line) in enumerate(lines.items()):
        colour = COLOURS[number]
        dash = ' stroke-dasharray="6 4"' if label == "bound" else ""
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in sorted(line.items())))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = TOP + 18 + 20 * number
        parts.append(
            f'<line x1="{LEFT + 16}" x2="{LEFT + 46}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        parts.append(f'<text x="{LEFT + 54}" y="{y + 4}">{label}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">rows decoded at once</text>')
    parts.append(
        f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">tokens/s</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """`python -m benchmarks.plot_engine REPORT.json OUT.svg`"""
    report, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    title = f"Decode, {report['model']['parameters'] / 1e9:.1f}B parameters in fp16 on one {report['machine']['gpu']}"
    out.write_text(draw(title, decode_lines(report)))


if __name__ == "__main__":
    main()
