"""Reading charts and their tables as a person does: lines, labels, what the pointer shows."""

from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

SVG = "{http://www.w3.org/2000/svg}"
AXES = {"title": "Title", "x_label": "x", "y_label": "y"}


def parse(chart: str) -> Element:
    root = ElementTree.fromstring(chart)
    assert root.tag == f"{SVG}svg"
    return root


def points(line: Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def lines(root: Element) -> list[Element]:
    return list(root.iter(f"{SVG}polyline"))


def tooltips(root: Element, tag: str) -> dict[str, Element]:
    """Elements of a kind by the text that the pointer shows."""
    return {one.findtext(f"{SVG}title") or "": one for one in root.iter(f"{SVG}{tag}") if len(one)}


def ticks(root: Element, *, horizontal: bool) -> dict[str, Element]:
    """The labels of the x axis are centred below it, those of the y axes are beside it."""
    labels = (one for one in root.iter(f"{SVG}text") if (one.get("text-anchor") == "middle") is horizontal)
    return {one.text or "": one for one in labels}


def across(root: Element, tick: str) -> float:
    return float(ticks(root, horizontal=True)[tick].attrib["x"])


def up(root: Element, tick: str) -> float:
    return float(ticks(root, horizontal=False)[tick].attrib["y"]) - 4  # a text hangs 4 px below its value


class Cells(HTMLParser):
    """The texts of a table's cells, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and data.strip():
            self.rows[-1][-1] += data
