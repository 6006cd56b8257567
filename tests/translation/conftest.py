"""`translating` is a whole service whose translations are short; `here` has this process's jobs use it."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from inference.translation.actions import create_jobs
from inference.translation.files import read_document
from inference.translation.formats import FORMATS
from inference.translation.formats.document import Options
from inference.translation.models import TranslationJob
from tests.service import Service

PROMPT_TOKENS = 100  # a longer line fails


@pytest.fixture(scope="session")
def translating(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    limits = {"MAX_NEW_TOKENS": "8", "MAX_PROMPT_TOKENS": str(PROMPT_TOKENS)}
    service = Service(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), SERVE_CELERY="true", **limits)
    try:
        yield service.wait_until_healthy()
    finally:
        service.stop()


@pytest.fixture
def here(translating: Service, settings, redis_url: str, transactional_db: None) -> Service:
    settings.RWKV = dataclasses.replace(settings.RWKV, port=urlsplit(translating.url).port)
    return translating


@pytest.fixture
def user(db: None) -> User:
    return get_user_model().objects.create_user("translator", password="correct horse battery staple")


@pytest.fixture
def new_job(user: User) -> Callable[..., TranslationJob]:
    """A job of `user` on a text."""

    def new_job(text: str, name: str = "txt", owner: User = user, **fields: str) -> TranslationJob:
        document = read_document(text.encode(), FORMATS[name], Options())
        languages = {"source_language": "en", "target_language": "zh"}
        (job,) = create_jobs(owner, [(f"file.{name}", document)], **{**languages, **fields})
        return job

    return new_job
