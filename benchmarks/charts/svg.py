"""The parts that all charts share: escaped elements, and a frame with axes, grid, legend, bands and marks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from unicodedata import east_asian_width

from benchmarks.charts.data import Band, Mark
from benchmarks.charts.scale import Scale
from benchmarks.charts.style import BAND, GRID, MARK, SURFACE, series_colour

# Narrow and with large letters: two stand side by side on a page, which makes them smaller.
WIDTH, HEIGHT, FONT = 600, 310, 13
LEFT, RIGHT, TOP, BOTTOM = 72, 22, 64, 50
RIGHT_WITH_AXIS = 72
LETTER = 7.6  # px: about the width of a letter, for placing the legend
LEGEND_ROW = 19
MARKS_UP_TO = 2.0  # times the greatest value
LINE = 15  # px from one line of a tick's label to the next


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """`content` is markup that is already escaped; attributes are escaped here. `_` in a name becomes `-`."""
    text = "".join(f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"' for key, value in attributes.items())
    return f"<{name}{text}>{content}</{name}>" if content else f"<{name}{text}/>"


def text(content: str, x: float, y: float, **attributes: str | float) -> str:
    return element("text", escape(content), x=x, y=y, fill="currentColor", **attributes)


def text_over(content: str, x: float, y: float, anchor: str) -> str:
    """Text over lines, legible by a rim in the colour of the page."""
    rim: dict[str, str | float] = {"stroke": SURFACE, "stroke_width": 3, "paint_order": "stroke"}
    return text(content, x, y, text_anchor=anchor, **rim)


def tooltip(content: str) -> str:
    return element("title", escape(content))


def document(
    body: Sequence[str],
    *,
    title: str,
    description: str,
    width: float = WIDTH,
    height: float = HEIGHT,
    above: float = 0.0,
) -> str:
    """The whole picture. Title and description are in the picture, so that they travel with it.

    `above` is how far the picture reaches above y = 0.
    """
    parts = [tooltip(title), element("desc", escape(description)) if description else "", *body]
    return element(
        "svg",
        "\n".join(part for part in parts if part),
        xmlns="http://www.w3.org/2000/svg",
        class_="svg-chart",  # not "chart": scripts of the admin take those for canvases
        role="img",
        aria_label=title,
        viewBox=f"0 {-above:g} {width:g} {height + above:g}",
        font_family="system-ui, sans-serif",
        font_size=FONT,
    )


def standalone(chart: str) -> str:
    """A chart as the content of an .svg file: on white, since nobody knows the page that will show it."""
    head, _, body = chart.partition("\n")
    return f'{head}\n<rect y="-100%" width="100%" height="200%" fill="white"/>\n{body}\n'


@dataclass
class Frame:
    """A plot with its axes. Draw into `body`, then `render`."""

    title: str
    x: Scale
    y: Scale
    x_label: str
    y_label: str
    y2: Scale | None = None
    y2_label: str = ""
    description: str = ""
    body: list[str] = field(default_factory=list)
    legend: Sequence[tuple[str, str]] = ()  # name and dash pattern of each series
    height: float = HEIGHT

    def bands(self, bands: Sequence[Band]) -> None:
        for number, band in enumerate(bands):
            left = self.x.place(max(band.start, self.x.low))
            right = self.x.place(min(band.end, self.x.high))
            if right <= left:
                continue
            self.body.append(
                element(
                    "rect",
                    tooltip(band.label),
                    x=left,
                    y=self.y.end,
                    width=right - left,
                    height=self.y.start - self.y.end,
                    fill=BAND,
                    fill_opacity=0.18 if number % 2 == 0 else 0.08,
                )
            )
            if right - left > LETTER * len(band.label):
                self.body.append(text(band.label, left + 2, self.y.end - 5, font_size=11))

    def vertical_marks(self, marks: Sequence[Mark], *, below: bool = False) -> None:
        """Labels are a line apart, so that neighbours stay legible; `below` is for curves that end at the top. An arrow
        points to what is far beyond.
        """
        for number, mark in enumerate(sorted(marks, key=lambda one: one.value)):
            row = self.y.end + 13 + LINE * (number % 4)
            row = self.y.start - 8 - LINE * (number % 4) if below else row
            if mark.value > self.x.high:
                self.body.append(text_over(f"{mark.label} \N{RIGHTWARDS ARROW}", self.x.end, row, "end"))
            if not self.x.low <= mark.value <= self.x.high:
                continue
            x = self.x.place(mark.value)
            ends = x + LETTER * len(mark.label) > self.x.end
            self.body.append(_mark_line(mark, x1=x, x2=x, y1=self.y.end, y2=self.y.start))
            self.body.append(text_over(mark.label, x - 4 if ends else x + 4, row, "end" if ends else "start"))

    def horizontal_marks(self, marks: Sequence[Mark]) -> None:
        """A label that another one is near to stands behind it, so that both stay legible. An arrow points to what is
        far beyond.
        """
        ends: list[tuple[float, float]] = []  # of the labels so far: height, right end
        for mark in marks:
            if mark.value < self.y.low:
                continue
            beyond = mark.value > self.y.high
            words = f"{mark.label} \N{UPWARDS ARROW}" if beyond else mark.label
            y = self.y.end + 18 if beyond else self.y.place(mark.value)
            x = max((end + 14 for height, end in ends if abs(height - y) < LINE), default=self.x.start + 6)
            ends.append((y, x + LETTER * len(words)))
            if not beyond:
                self.body.append(_mark_line(mark, x1=self.x.start, x2=self.x.end, y1=y, y2=y))
            self.body.append(text_over(words, x, y - 5, "start"))

    def render(self) -> str:
        legend, above = self._legend()
        parts = [text(self.title, 12, 20 - above, font_size=15, font_weight=600), *legend, *self._axes(), *self.body]
        return document(parts, title=self.title, description=self.description, height=self.height, above=above)

    def _axes(self) -> list[str]:
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = []
        for value, label in self.x.ticks():
            x = self.x.place(value)
            parts.append(element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, stroke="currentColor"))
            for row, words in enumerate(label.split("\n")):
                parts.append(text(words, x, bottom + 17 + LINE * row, text_anchor="middle"))
        for value, label in self.y.ticks():
            y = self.y.place(value)
            parts.append(element("line", x1=left, x2=right, y1=y, y2=y, stroke=GRID))
            parts.append(text(label, left - 7, y + 4, text_anchor="end"))
        for value, label in self.y2.ticks() if self.y2 else ():
            parts.append(text(label, right + 7, self.y2.place(value) + 4 if self.y2 else 0))
        parts.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, stroke="currentColor"))
        middle = (top + bottom) / 2
        parts.append(text(self.x_label, (left + right) / 2, self.height - 10, text_anchor="middle"))
        parts.append(_upright(self.y_label, 16, middle))
        if self.y2:
            parts.append(_upright(self.y2_label, WIDTH - 12, middle))
        return parts

    def _legend(self) -> tuple[list[str], float]:
        """The legend, in as many rows as it needs, and how far they reach above the picture."""
        if len(self.legend) < 2 and self.y2 is None:
            return [], 0.0
        places, rows = flow([name for name, _ in self.legend], swatch=26, start=self.x.start)
        above = LEGEND_ROW * (rows - 1)
        parts = []
        for number, ((name, pattern), (x, row)) in enumerate(zip(self.legend, places, strict=True)):
            style: dict[str, str | float] = {"stroke": series_colour(number), "stroke_dasharray": pattern}
            y = 38 - above + LEGEND_ROW * row
            parts.append(element("line", x1=x, x2=x + 26, y1=y, y2=y, stroke_width=3, **style))
            parts.append(text(name, x + 32, y + 4))
        return parts, above


def flow(names: Sequence[str], *, swatch: float, start: float) -> tuple[list[tuple[float, int]], int]:
    """(x, row) of each entry of a legend, and the number of rows: an entry that does not fit begins the next row."""
    places, x, row = [], start, 0
    for name in names:
        wide = swatch + 6 + LETTER * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in name)
        if x > start and x + wide > WIDTH:
            x, row = start, row + 1
        places.append((x, row))
        x += wide + 22
    return places, row + 1


def near(marks: Sequence[Mark], values: Sequence[float]) -> list[float]:
    """The marks that an axis makes room for. What is far beyond all values would press them into a corner."""
    highest = MARKS_UP_TO * max(values, default=float("inf"))
    return [mark.value for mark in marks if mark.value <= highest]


def _mark_line(mark: Mark, **places: float) -> str:
    return element("line", tooltip(mark.label), stroke=MARK, stroke_width=1.5, stroke_dasharray="5 3", **places)


def _upright(content: str, x: float, y: float) -> str:
    return text(content, x, y, text_anchor="middle", transform=f"rotate(-90 {x:g} {y:g})")


def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
