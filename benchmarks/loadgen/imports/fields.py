"""Reading a foreign file: whatever is wrong with it is said with the file and the field."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class BadFile(Exception):
    """A file cannot be imported. The message names the file and the field."""


@dataclass(frozen=True)
class Fields:
    """An object of a file. `path` says where in the file it is. A field that is missing or null is None."""

    file: str
    values: Mapping[str, Any]
    path: str = ""

    def number(self, name: str) -> float | None:
        """NaN and infinities, which JSON does not have but Python writes, are None as well. Text of a CSV is read."""
        value = self.values.get(name)
        if value is None or value == "":
            return None
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise self.bad(name, f"{value!r} is not a number")
        return number if math.isfinite(number) else None

    def needed(self, name: str) -> float:
        value = self.number(name)
        if value is None:
            raise self.bad(name, "is missing")
        return value

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else round(value)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.bad(name, f"{value!r} is not a text")
        return value

    def inner(self, name: str) -> "Fields":
        """An object within this one; a missing one is empty."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.bad(name, f"{value!r} is not an object")
        return Fields(self.file, value, f"{self.path}{name}.")

    def items(self, name: str) -> list[Any] | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.bad(name, "is not a list")
        return value

    def objects(self, name: str) -> Iterator["Fields"]:
        for place, value in enumerate(self.items(name) or []):
            if not isinstance(value, Mapping):
                raise self.bad(f"{name}[{place}]", "is not an object")
            yield Fields(self.file, value, f"{self.path}{name}[{place}].")

    def bad(self, name: str, problem: str) -> BadFile:
        return BadFile(f"{self.file}: {self.path}{name}: {problem}")
