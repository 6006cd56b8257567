"""POST /translate/v1/batch-translate: the custom API of the Immersive Translate browser extension."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
from django.conf import settings
from django.http import HttpResponse
from msgspec import Meta
from rest_framework.request import Request

from inference.api.edge.base import ApiView
from inference.api.edge.errors import InvalidRequest
from inference.api.edge.openapi import operation
from inference.api.edge.responses import json_response
from inference.api.edge.schemas import SamplingFields
from inference.api.generating.limits import encode_prompts
from inference.api.generating.model import find_model
from inference.api.generating.sampling import TRANSLATION, build_sampling
from inference.api.native.batch import NATIVE_STATUSES, check_size
from inference.api.native.languages import AUTO, detect_language, language_name
from inference.api.native.replies import Translation, Translations
from inference.api.native.text_pieces import find_placeholders, split_at_placeholders, split_text
from inference.api.rows.generation import GenerationFailed, start
from inference.api.rows.request import GenerationRequest, Row
from inference.bus.call import BusError
from inference.bus.messages import END_OF_TEXT

# A piece and its translation fit into max_tokens with ease, and small models lose the thread in longer ones.
PIECE_TOKENS = 512
MAX_PLACEHOLDERS = 1024


class TranslateBody(msgspec.Struct, kw_only=True):
    """`placeholders`: parts of the texts that must come back unchanged, besides those that look like one."""

    source_lang: str | None = None  # AUTO
    target_lang: str | None = None
    text_list: list[str] | None = None
    placeholders: Annotated[list[str], Meta(max_length=MAX_PLACEHOLDERS)] | None = None
    password: str | None = None


class TranslateView(ApiView):
    native_errors = True
    may_be_open = True  # the extension can send no key

    @operation(
        "Translate a list of texts",
        tag="native",
        request=TranslateBody,
        replies=(Translations,),
        statuses=NATIVE_STATUSES,
    )
    async def post(self, request: Request) -> HttpResponse:
        """Items are independent: one that fails comes back as it was sent, unless all fail for the same reason."""
        body = request.payload.read(TranslateBody)
        target = (body.target_lang or "").strip()
        if not target:
            raise InvalidRequest("Missing target_lang", param="target_lang")
        texts = body.text_list or []
        check_size(len(texts), "text_list", empty="Empty text_list")
        translator = Translator(body, target, (await find_model(None)).id, self.request_id)
        outcomes = await asyncio.gather(*map(translator.translate, texts), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, BusError | GenerationFailed):
                raise outcome
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(failures) == len(texts):
            raise failures[0]
        return json_response(
            Translations(
                [
                    Translation(translator.source_code(text), text if isinstance(outcome, BaseException) else outcome)
                    for text, outcome in zip(texts, outcomes, strict=True)
                ]
            )
        )


class Translator:
    """The languages of one request, and what its items have in common."""

    def __init__(self, body: TranslateBody, target: str, model: str, request_id: str) -> None:
        self._code = (body.source_lang or "").strip() or AUTO
        self._source = language_name(self._code)
        self._target = language_name(target)
        self._placeholders = body.placeholders or []
        self._model = model
        self._request_id = request_id

    def source_code(self, text: str) -> str:
        return detect_language(text) if self._code.lower() == AUTO else self._code

    async def translate(self, text: str) -> str:
        """Raises BusError or GenerationFailed."""
        pieces = await asyncio.to_thread(split_text, text, PIECE_TOKENS)  # seconds, for a text of megabytes
        translations = await self._translate_pieces(pieces)
        for index, (piece, translation) in enumerate(zip(pieces, translations, strict=True)):
            wanted = Counter(find_placeholders(piece, self._placeholders))
            if wanted - Counter(find_placeholders(translation, self._placeholders)):
                translations[index] = await self._translate_around_placeholders(piece)
        return "".join(translations).strip()

    async def _translate_around_placeholders(self, piece: str) -> str:
        """For when the model dropped a placeholder: worse as a translation, but nothing is lost."""
        parts = split_at_placeholders(piece, self._placeholders)
        parts[::2] = await self._translate_pieces(parts[::2])
        return "".join(parts)

    async def _translate_pieces(self, pieces: Sequence[str]) -> list[str]:
        """Each piece translated, with the white space around it as it was. One without a translation stays as it is."""
        cores = [piece.strip() for piece in pieces]
        done = iter(await self._generate([core for core in cores if core]))
        translations = [(next(done).strip() or core) if core else "" for core in cores]
        return [
            _replaced(piece, core, translation)
            for piece, core, translation in zip(pieces, cores, translations, strict=True)
        ]

    async def _generate(self, texts: Sequence[str]) -> list[str]:
        if not texts:
            return []
        check_size(len(texts), "text_list")
        prompts = [f"{self._source}: {text}\n\n{self._target}:" for text in texts]
        sampling = build_sampling(SamplingFields(), TRANSLATION, 0)
        request = GenerationRequest(
            rows=[Row(prompt=ids, sampling=sampling) for ids in encode_prompts(prompts, "text_list")],
            model=self._model,
            endpoint="translate",
            request_id=self._request_id,
            resumable=False,
            max_tokens=min(TRANSLATION.max_tokens, settings.RWKV.max_new_tokens),
            stop_ids=[END_OF_TEXT],
            # The next turn of the prompt's own form: some models go on with it instead of ending.
            stop_strings=[f"\n\n{self._source}:"],
        )
        async with await start(request) as generation:
            return [choice.text for choice in await generation.collect()]


def _replaced(piece: str, core: str, translation: str) -> str:
    before, _, after = piece.partition(core) if core else (piece, "", "")
    return before + translation + after
