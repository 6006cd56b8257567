"""A conversation as it goes on: what is sent next, given what was answered."""

from typing import Any

from benchmarks.loadgen.datasets.conversations import Conversation
from benchmarks.loadgen.exchange import Prompt

STATE_TURN = "User: {}\n\nAssistant:"  # as the World models were trained, for servers that keep the text before it


class Dialogue:
    """`stateful`: the server keeps what was said under `session`, and gets the new turn alone, as raw text."""

    def __init__(self, conversation: Conversation, session: str, *, stateful: bool) -> None:
        self._conversation = conversation
        self._session = session
        self._stateful = stateful
        self._turn = 0
        system = conversation.system
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    @property
    def is_over(self) -> bool:
        return self._turn == len(self._conversation.turns)

    @property
    def needs_answers(self) -> bool:
        """Whether the next prompt repeats the answers."""
        return not self._stateful

    def ask(self) -> Prompt:
        """The next turn, which is to be followed by `hear` before the one behind it."""
        turn = self._conversation.turns[self._turn]
        prompt = Prompt(
            output_tokens=turn.output_tokens,
            min_output_tokens=turn.min_output_tokens,
            session=self._session,
            turn=self._turn,
        )
        self._turn += 1
        if self._stateful:
            before = f"{self._conversation.system}\n\n" if self._turn == 1 and self._conversation.system else ""
            prompt.text = before + STATE_TURN.format(turn.text)
        else:
            self._messages.append({"role": "user", "content": turn.text})
            prompt.messages = list(self._messages)
        return prompt

    def hear(self, answer: str) -> None:
        self._messages.append({"role": "assistant", "content": answer})
