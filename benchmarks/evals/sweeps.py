"""One eval over several models, data types or settings, and when it runs."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django_celery_beat.models import PeriodicTask

from benchmarks import datafiles
from benchmarks.allowed import check_target_url
from benchmarks.evals.datasets import PUBLIC, known_sha256
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Options
from benchmarks.evals.registry import EVALS

RUN_SWEEP = "benchmarks.evals.tasks.run_sweep"
MESSAGE_SECONDS = 3600  # a sweep that is later than this is left out: missed ones must not pile up


def tasks() -> list[tuple[str, str]]:
    return [(name, f"{name}: {kind.help}") for name, kind in EVALS.items()]


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One run of a sweep: what it does otherwise than the sweep says. The others are held against the first one.

    A data type or a back end is a setting of an engine, so it is swept by the address of a service that has it.
    """

    label: str = ""
    base_url: str = ""
    model: str = ""
    load: bool = False  # have the service change to the model first
    options: dict[str, Any] = {}


def read_entries(value: object) -> list[Entry]:
    """Raises ValidationError, which names the entry."""
    try:
        entries = msgspec.convert(value, list[Entry])
    except msgspec.ValidationError as error:
        raise ValidationError(
            f"must be a list of objects with label, base_url, model, load, options: {error}"
        ) from None
    for entry in entries:
        if entry.base_url:
            check_target_url(entry.base_url)
        read_options(entry.options)
        if entry.load and not entry.model:
            raise ValidationError(f"{entry.label or 'an entry'}: load needs a model")
    return entries


def read_options(value: object) -> Options:
    """Raises ValidationError, which names the option."""
    known = [field.name for field in msgspec.structs.fields(Options)]
    if not isinstance(value, dict) or (value.keys() - set(known)):
        raise ValidationError(f"must be an object with some of {', '.join(known)}")
    try:
        return msgspec.convert(value, Options)
    except msgspec.ValidationError as error:
        raise ValidationError(str(error)) from None


def check_checksum(text: str) -> None:
    """Raises ValidationError."""
    try:
        known_sha256(text)
    except EvalError as error:
        raise ValidationError(str(error)) from None


class EvalSweep(models.Model):
    """One eval over models, data types and settings; without entries, one run."""

    name = models.CharField(max_length=100, unique=True)
    task = models.CharField("eval", max_length=60, choices=tasks)
    target = models.ForeignKey("benchmarks.Target", models.PROTECT, related_name="eval_sweeps")
    data = models.CharField(
        max_length=300,
        blank=True,
        validators=[datafiles.check_path],
        help_text="File below the folder benchmarks/datasets of VAR_DIR. Empty: what ships with the project.",
    )
    sha256 = models.CharField(
        "SHA-256",
        max_length=64,
        blank=True,
        validators=[check_checksum],
        help_text=f"What the file must have, or the name of a public one: {', '.join(PUBLIC)}.",
    )
    limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="The first documents alone."
    )
    concurrency = models.PositiveSmallIntegerField(default=8, validators=[MinValueValidator(1)])
    batch = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Documents of one request; the eval's own."
    )
    options = models.JSONField(
        default=dict, blank=True, validators=[read_options], help_text='Options by name, like {"prefix": 0}.'
    )
    entries = models.JSONField(
        default=list,
        blank=True,
        validators=[read_entries],
        help_text='The runs, like [{"label": "fp16"}, {"label": "fp32", "base_url": "http://127.0.0.1:8001"}].',
    )

    class Meta:
        verbose_name = "eval sweep"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if not self.data and self.task in EVALS and EVALS[self.task].data is None:
            raise ValidationError({"data": f"{self.task} needs a file"})

    def configurations(self) -> Iterator[dict[str, Any]]:
        """What each run depends on, as it is now. No secret is among it: keys have only names here."""
        for entry in read_entries(self.entries) or [Entry()]:
            yield {
                "sweep": self.name,
                "label": entry.label,
                "target": self.target.name,
                "base_url": (entry.base_url or self.target.base_url).rstrip("/"),
                "api_key_variable": self.target.api_key_variable,
                "model": entry.model or self.target.model,
                "load": entry.load,
                "data": self.data,
                "sha256": self.sha256,
                "limit": self.limit,
                "concurrency": self.concurrency,
                "batch": self.batch,
                "options": {**self.options, **entry.options},
            }


class EvalSchedule(PeriodicTask):
    """When a sweep runs: a periodic task of Celery beat that also knows its sweep."""

    sweep = models.ForeignKey(EvalSweep, models.CASCADE, related_name="schedules")

    class Meta:
        verbose_name = "eval schedule"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.task = RUN_SWEEP
        self.kwargs = json.dumps({"sweep": self.sweep_id})
        if self.expires is None:
            self.expire_seconds = self.expire_seconds or MESSAGE_SECONDS
        super().save(*args, **kwargs)
