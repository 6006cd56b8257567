"""The end of a run: one JSON file, and one line to read."""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

SUMMARY = "summary.json"

# What the line names, in this order, where a run has it: (figure, its standard error, digits).
SHOWN = (
    ("acc", "acc_stderr", 4),
    ("ppl", "ppl_stderr", 4),
    ("bits_per_byte", None, 4),
)


class Summary(msgspec.Struct, kw_only=True):
    """`figures` depend on the eval. Speeds and token counts are those of the last session of a resumed run."""

    eval: str
    status: Literal["completed", "failed"]
    error: str
    n: int  # documents that are answered
    documents: int  # that there are
    resumed: int  # answered by an earlier session
    seconds: float
    documents_per_second: float
    prompt_tokens: int
    prompt_tokens_per_second: float
    output_tokens: int
    output_tokens_per_second: float
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
        speed = f"{self.documents_per_second:.1f} documents/s, {self.prompt_tokens_per_second:.0f} prompt tokens/s"
        if self.output_tokens:
            speed += f", {self.output_tokens_per_second:.0f} output tokens/s"
        return f"{' '.join(words)} | {speed}, {self.seconds:.1f} s"


def write_summary(folder: Path, summary: Summary) -> None:
    """In one move, so that a reader finds the old one or the new one."""
    part = folder / f"{SUMMARY}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(summary.flat()), indent=2) + b"\n")
    os.replace(part, folder / SUMMARY)
