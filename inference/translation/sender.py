"""One line's way to the translation endpoint and back."""

import logging
from dataclasses import dataclass
from typing import Annotated

import aiohttp
import msgspec
from msgspec import Meta

from inference.batches.lines import RequestLine
from inference.batches.sender import ask
from inference.translation.formats.document import Format, has_words
from inference.translation.glossary import Glossary, restore
from inference.translation.line_errors import NOT_AS_EXPECTED
from inference.translation.models import MAX_ERROR

log = logging.getLogger(__name__)

PATH = "/translate/v1/batch-translate"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`error` is empty for a success."""

    number: int
    translation: str = ""
    error: str = ""


class _Item(msgspec.Struct):
    text: str


class _Reply(msgspec.Struct):
    translations: Annotated[list[_Item], Meta(min_length=1, max_length=1)]


class _Refusal(msgspec.Struct):
    error: str


class Translator:
    """What the lines of one job have in common."""

    def __init__(self, *, source: str, target: str, format: Format, glossary: Glossary) -> None:
        self._source = source
        self._target = target
        self._format = format
        self._glossary = glossary

    async def translate(self, session: aiohttp.ClientSession, number: int, text: str) -> Outcome:
        """Ask until there is an answer. Raises KeyRefused.

        A request has one line: the endpoint answers a list in which a line has failed with that line
        untranslated, which could not be told from a translation.
        """
        marked, restored = self._glossary.protect(text)
        if not has_words(marked):  # terms alone
            return Outcome(number, restore(marked, restored))
        body = {
            "source_lang": self._source,
            "target_lang": self._target,
            "text_list": [marked],
            "placeholders": self._format.protected_parts(marked),
        }
        request = RequestLine(str(number), "POST", PATH, msgspec.Raw(msgspec.json.encode(body)))
        answer = await ask(session, number, request)
        if answer.line.response is None:
            return Outcome(number, error=answer.line.error.message[:MAX_ERROR])
        response = answer.line.response
        try:
            if answer.failed:
                refusal = msgspec.json.decode(response.body, type=_Refusal)
                return Outcome(number, error=refusal.error[:MAX_ERROR])
            reply = msgspec.json.decode(response.body, type=_Reply)
        except msgspec.MsgspecError as error:
            log.error("line %d: HTTP %d with a body that is not as expected: %s", number, response.status_code, error)
            return Outcome(number, error=NOT_AS_EXPECTED)
        # PostgreSQL's text holds every character but NUL.
        return Outcome(number, restore(reply.translations[0].text, restored).replace("\0", ""))
