"""What is measured (a target) and with which prompts (a data set)."""

import re
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models

from benchmarks import datafiles, profiles
from benchmarks.allowed import check_target_url

# Any other variable of our process, a database password say, must not be sent to a target.
KEY_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*_API_KEY")
SECRET_HEADERS = {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"}


def validate_key_variable(name: str) -> None:
    if not KEY_VARIABLE.fullmatch(name):
        raise ValidationError(f"must be the name of an environment variable that ends in _API_KEY, not {name!r}")


def validate_headers(headers: object) -> None:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ValidationError("must be an object whose values are texts")
    if secret := sorted(name for name in headers if name.lower() in SECRET_HEADERS):
        raise ValidationError(f"{secret[0]} would store a secret: name an environment variable instead")


def validate_options(options: object) -> None:
    if not isinstance(options, dict):
        raise ValidationError('must be an object of option names and values, like {"num_prompts": 100}')
    try:
        profiles.check_names(options)
    except profiles.BadOption as error:
        raise ValidationError(str(error)) from None


class Target(models.Model):
    """A server under test. Its key is in the environment of the Celery worker, and never here."""

    name = models.CharField(max_length=100, unique=True)
    base_url = models.CharField(
        max_length=300,
        validators=[check_target_url],
        help_text="Loopback, or an origin of the setting BENCHMARK_TARGETS.",
    )
    backend = models.CharField(max_length=40, default="openai", help_text="The wire protocol: --backend of the bench.")
    endpoint = models.CharField(max_length=200, blank=True, help_text="Empty: the back end's own.")
    model = models.CharField(max_length=200, blank=True, help_text="Empty: the first that the target lists.")
    api_key_variable = models.CharField(
        max_length=100,
        blank=True,
        validators=[validate_key_variable],
        help_text="Name of the environment variable that holds the key.",
    )
    headers = models.JSONField(default=dict, blank=True, validators=[validate_headers])
    notes = models.TextField(blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, object]:
        """What it contributes to a command's options."""
        named = {
            "base_url": [self.base_url],
            "allow_host": [urlsplit(self.base_url).hostname],  # `check_target_url` has allowed it
            "backend": self.backend,
            "endpoint": self.endpoint,
            "model": self.model,
            "api_key_env": self.api_key_variable,
            "header": self.headers or {},
        }
        return {name: value for name, value in named.items() if value}


class Dataset(models.Model):
    """Prompts by rule (`random` and the like) or from a file below the folder of data sets."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=40, default="random", help_text="--dataset-name of the bench.")
    parameters = models.JSONField(
        default=dict, blank=True, validators=[validate_options], help_text="Options of this kind of data set."
    )
    path = models.CharField(
        max_length=300,
        blank=True,
        help_text="File below the folder benchmarks/datasets of VAR_DIR.",
    )
    sha256 = models.CharField(max_length=64, blank=True, editable=False)
    rows = models.PositiveBigIntegerField(null=True, blank=True, editable=False)
    length_stats = models.JSONField(
        default=dict, blank=True, editable=False, help_text="Characters of the rows: min, mean, max."
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.measure()
        super().save(*args, **kwargs)

    @property
    def options(self) -> dict[str, object]:
        path = {"dataset_path": str(datafiles.resolve(self.path))} if self.path else {}
        return {"dataset_name": self.kind, **path, **(self.parameters or {})}

    def clean(self) -> None:
        try:
            self.measure()
        except ValidationError as error:
            raise ValidationError({"path": error.messages}) from None

    def measure(self) -> None:
        """Read the file anew: digest, rows and lengths follow its content. Raises ValidationError."""
        facts = datafiles.measure(self.path) if self.path else datafiles.Facts()
        self.sha256, self.rows, self.length_stats = facts.sha256, facts.rows, facts.lengths
