"""What was said in a run of conversations: the data set's turns with the answers that came."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.loadgen.datasets.conversations import Conversation
from benchmarks.loadgen.plan import Plan
from benchmarks.loadgen.records import RequestRecord, RunResult


class Transcript(msgspec.Struct, frozen=True):
    """`answers` are those of the first turns, up to the first that failed."""

    conversation: Conversation
    answers: list[str]

    def messages(self) -> list[dict[str, Any]]:
        conversation = self.conversation
        said = [{"role": "system", "content": conversation.system}] if conversation.system else []
        for turn, answer in zip(conversation.turns, self.answers, strict=False):
            said += [{"role": "user", "content": turn.text}, {"role": "assistant", "content": answer}]
        return said


def transcripts(plan: Plan, result: RunResult) -> list[Transcript]:
    """Of every conversation that was begun, by user and in order. `plan` is the run's own, whose records have texts."""
    sessions: dict[tuple[int, int], list[RequestRecord]] = {}
    for record in result.records:
        if record.session and record.user is not None:
            number = int(record.session.rpartition("-")[2])  # how many conversations its user had begun before
            sessions.setdefault((record.user, number), []).append(record)
    return [
        Transcript(_conversation(plan, user, number), _answers(records))
        for (user, number), records in sorted(sessions.items())
    ]


def mismatches(found: Sequence[Transcript], expected: Mapping[str, list[str]]) -> Iterator[str]:
    """A line for each answer that is not the data set's own, white space around it aside."""
    for one in found:
        wanted = expected.get(one.conversation.id, [])
        for turn, (answer, right) in enumerate(zip(one.answers, wanted, strict=False)):
            if answer.strip() != right.strip():
                yield f"conversation {one.conversation.id}, turn {turn}: {answer!r} is not {right!r}"


def _conversation(plan: Plan, user: int, number: int) -> Conversation:
    order = plan.users[user].order
    conversation = plan.items[order[number % len(order)]]
    assert isinstance(conversation, Conversation)
    return conversation


def _answers(records: Sequence[RequestRecord]) -> list[str]:
    """By turn; of several tries of a turn the one that succeeded."""
    by_turn = {record.turn: record.text or "" for record in records if record.succeeded}
    answers: list[str] = []
    while len(answers) in by_turn:
        answers.append(by_turn[len(answers)])
    return answers
