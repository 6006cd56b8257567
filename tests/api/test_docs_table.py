"""docs/api.md: its table has every route and no other, and every file that it links to is there."""

import re
from pathlib import Path

from inference.api import urls

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
EVERYTHING_ELSE = "/<path:route>"


def served() -> set[str]:
    routes = {f"/{pattern.pattern}" for pattern in urls.urlpatterns} - {EVERYTHING_ELSE}
    return {re.sub("<[^>]*>", "{id}", route.rstrip("/")) or "/" for route in routes}


def documented() -> set[str]:
    """Of the first cells of all rows; a second table names some routes again."""
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return {path for cell in cells for path in re.findall(r"(?<=[ `])/[^` ]*(?=`)", cell)}


def test_the_table_has_every_route_and_no_other():
    table = documented()
    assert served() - table == set()
    assert table - served() == set()


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert len(links) > 20
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
