"""The end of a run: one JSON file, and one line to read."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.evals.journal import unwritable

SUMMARY = "summary.json"

# What the line names, in this order, where a run has it: (figure, its standard error, digits).
SHOWN = (
    ("acc", "acc_stderr", 4),
    ("ppl", "ppl_stderr", 4),
    ("bits_per_byte", None, 4),
)
SPEEDS = (
    "seconds",
    "documents_per_second",
    "prompt_tokens",
    "prompt_tokens_per_second",
    "output_tokens",
    "output_tokens_per_second",
)


class Summary(msgspec.Struct, kw_only=True):
    """`figures` depend on the eval. Speeds and token counts are those of the last session that answered anything."""

    eval: str
    status: Literal["completed", "failed"]
    error: str
    n: int  # documents that are answered
    documents: int  # that there are
    resumed: int  # answered by an earlier session
    seconds: float = 0.0
    documents_per_second: float | None = None  # None, as the other speeds: nothing was answered, or nobody knows
    prompt_tokens: int = 0
    prompt_tokens_per_second: float | None = None
    output_tokens: int = 0
    output_tokens_per_second: float | None = None
    note: str = ""  # what is worth knowing of the data
    settings: dict[str, Any]
    figures: dict[str, Any]

    def flat(self) -> dict[str, Any]:
        """All of it with the figures on one level: what is stored, and what gates name."""
        values = msgspec.to_builtins(self)
        return {**{name: value for name, value in values.items() if name != "figures"}, **values["figures"]}

    def line(self) -> str:
        words = [f"{self.eval}: {self.status} n={self.n}"]
        for name, error, digits in SHOWN:
            if self.figures.get(name) is not None:
                words.append(f"{name}={self.figures[name]:.{digits}f}")
                if error and self.figures.get(error) is not None:
                    words.append(f"±{self.figures[error]:.{digits}f}")
        speeds = [
            _speed(self.documents_per_second, 1, "documents/s"),
            _speed(self.prompt_tokens_per_second, 0, "prompt tokens/s"),
            _speed(self.output_tokens_per_second, 0, "output tokens/s") if self.output_tokens else "",
            f"{self.seconds:.1f} s",
        ]
        return f"{' '.join(words)} | {', '.join(filter(None, speeds))}"


def write_summary(folder: Path, summary: Summary) -> None:
    """In one move, so that a reader finds the old one or the new one. Raises EvalError."""
    part = folder / f"{SUMMARY}.part"
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(summary.flat()), indent=2) + b"\n")
        os.replace(part, folder / SUMMARY)
    except OSError as error:
        raise unwritable(folder, error) from None


def read_speeds(folder: Path) -> dict[str, Any]:
    """The fields of `SPEEDS` as an earlier session wrote them; {} where none has, or none that can be read."""
    try:
        found = msgspec.json.decode((folder / SUMMARY).read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.MsgspecError):
        return {}
    return {name: found[name] for name in SPEEDS} if found.keys() >= set(SPEEDS) else {}


def _speed(value: float | None, digits: int, unit: str) -> str:
    return "" if value is None else f"{value:.{digits}f} {unit}"
