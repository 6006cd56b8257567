"""Cells that a spreadsheet shows as text and never runs: what a server answered may look like a formula."""

from typing import Any

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def safe(value: Any) -> Any:
    """A text that begins like a formula gets an apostrophe in front; numbers stay numbers."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
