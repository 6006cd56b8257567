"""Nested values as rows of two columns, for tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | float | None]]:
    """(path with dots, value), in order; a list is written as JSON."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        elif value is None or isinstance(value, str | float | int):
            yield path, value
        else:
            yield path, msgspec.json.encode(value).decode()
