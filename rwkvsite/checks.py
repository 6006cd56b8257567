"""System checks for our own settings."""

import re
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.utils.module_loading import import_string

PAGE_MIDDLEWARE = (
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
)
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@register(Tags.security)
def check_page_middleware(**kwargs) -> list[CheckMessage]:
    """Stand in for security.W001 to W003, which know Django's own classes only by their names."""
    installed = [import_string(path) for path in settings.MIDDLEWARE]
    return [
        Error(f"No middleware in MIDDLEWARE is a {path}.", id="rwkv.E001")
        for path in PAGE_MIDDLEWARE
        if not any(isinstance(found, type) and issubclass(found, import_string(path)) for found in installed)
    ]


@register(Tags.security, deploy=True)
def check_plain_http(**kwargs) -> list[CheckMessage]:
    if settings.RWKV.https or settings.RWKV.listens_on_loopback_only:
        return []
    hint = "Put a proxy that ends TLS in front and set HTTPS=true, or keep HOST on loopback."
    return [Warning(f"HOST is {settings.RWKV.host}: passwords would cross the network in clear.", hint, id="rwkv.W002")]


@register(Tags.security, deploy=True)
def check_trusted_hosts(**kwargs) -> list[CheckMessage]:
    if settings.RWKV.trusted_hosts or settings.RWKV.listens_on_loopback_only:
        return []
    hint = "Set TRUSTED_HOSTS to the names that clients use, separated by commas."
    return [Warning("HOST is not loopback and TRUSTED_HOSTS is not set: any Host is accepted.", hint, id="rwkv.W003")]


@register()
def check_model(**kwargs) -> list[CheckMessage]:
    model = settings.RWKV.model
    if model and not Path(model).is_file():
        return [Error(f"MODEL names {model!r}, which is not a file.", id="rwkv.E004")]
    return []


@register()
def check_engine_device(**kwargs) -> list[CheckMessage]:
    if DEVICE.fullmatch(settings.RWKV.engine_device):
        return []
    return [
        Error(f"ENGINE_DEVICE must be auto, cpu, cuda or cuda:N, not {settings.RWKV.engine_device!r}.", id="rwkv.E005")
    ]


@register()
def check_postgres_driver(**kwargs) -> list[CheckMessage]:
    if settings.RWKV.database_url.startswith("postgres") and find_spec("psycopg_pool") is None:
        return [
            Error(
                "DATABASE_URL names PostgreSQL, and its driver is missing.",
                "pip install 'psycopg[binary,pool]'",
                id="rwkv.E006",
            )
        ]
    return []
