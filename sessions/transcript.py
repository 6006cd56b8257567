"""A session as text: every turn's prompt and reply, those before a branch included."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from inference.history import unpack_ids
from inference.text.tokenizer import get_tokenizer
from sessions.models import Session, Turn


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    number: int
    prompt: str
    reply: str
    finish_reason: str
    sampling: dict[str, Any]
    prompt_ids: list[int]
    reply_ids: list[int]
    created: datetime
    duration: float  # seconds

    @property
    def tokens(self) -> int:
        return len(self.prompt_ids) + len(self.reply_ids)


def read_transcript(session: Session) -> list[SpokenTurn]:
    """The turns in order, from the first ancestor's on."""
    backward: list[SpokenTurn] = []
    current: Session | None = session
    end: int | None = session.turn_count
    while current is not None:
        backward += [_spoken(turn) for turn in current.turns.filter(number__lte=end).order_by("-number")]
        current, end = current.parent, current.parent_turn
    return backward[::-1]


def _spoken(turn: Turn) -> SpokenTurn:
    prompt, reply = unpack_ids(bytes(turn.prompt_ids)), unpack_ids(bytes(turn.reply_ids))
    decode = get_tokenizer().decode
    return SpokenTurn(
        number=turn.number,
        prompt=decode(prompt),
        reply=decode(reply),
        finish_reason=turn.finish_reason,
        sampling=turn.sampling,
        prompt_ids=prompt,
        reply_ids=reply,
        created=turn.created,
        duration=turn.duration,
    )
