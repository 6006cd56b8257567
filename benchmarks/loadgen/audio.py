"""How long the audio of a prompt lasts, for the figure that vLLM calls RTFx."""

import base64
import wave
from collections.abc import Iterable, Iterator
from io import BytesIO
from math import fsum, isfinite, nan
from typing import Any

from benchmarks.loadgen.exchange import Prompt


def parts_of(prompt: Prompt) -> Iterator[dict[str, Any]]:
    """The `input_audio` of every part of its messages that has one: {data (base64), format}."""
    for message in prompt.messages or ():
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "input_audio":
                yield part["input_audio"]


def seconds(prompts: Iterable[Prompt]) -> float:
    """Of all their audio together; nan where the length of one cannot be read, which is so unless it is WAV (PCM)."""
    return fsum(_seconds(part) for prompt in prompts for part in parts_of(prompt))


def figures(audio_seconds: float, duration: float | None) -> dict[str, float]:
    """For a summary: `rtfx`, seconds of audio for each second of the run. Empty without audio of a known length."""
    return {"rtfx": audio_seconds / duration} if duration and audio_seconds and isfinite(audio_seconds) else {}


def _seconds(part: dict[str, Any]) -> float:
    try:
        with wave.open(BytesIO(base64.b64decode(part["data"]))) as sound:
            return sound.getnframes() / sound.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError):  # the last for a header without a rate
        return nan
