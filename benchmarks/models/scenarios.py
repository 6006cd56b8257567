"""A load to be run again and again, and when."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django_celery_beat.models import PeriodicTask

from benchmarks import profiles
from benchmarks.models.targets import Dataset, Target, validate_options

RUN_SCENARIO = "benchmarks.tasks.run_scenario"
MESSAGE_SECONDS = 3600  # a run that is later than this is left out: missed runs must not pile up


class Kind(models.TextChoices):
    SERVE = "serve", "requests at a rate"
    CLIENTS = "clients", "a fixed number of clients"
    MULTITURN = "multiturn", "conversations"


class Scenario(models.Model):
    """Target, data set and load profile. With sweep values it is one run for each of them."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=20, choices=Kind, default=Kind.SERVE)
    target = models.ForeignKey(Target, models.PROTECT, related_name="scenarios")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="scenarios", null=True, blank=True)
    profile = models.JSONField(
        default=dict,
        blank=True,
        validators=[validate_options],
        help_text='Options of the command by name, like {"num_prompts": 300, "request_rate": 20}.',
    )
    slos = models.JSONField(
        default=dict, blank=True, help_text='Limits in ms for goodput, like {"ttft": 200, "tpot": 50}.'
    )
    max_seconds = models.PositiveIntegerField(
        default=3600, validators=[MinValueValidator(1)], help_text="A run that takes longer is stopped, and failed."
    )
    seed = models.PositiveIntegerField(default=0)
    repeats = models.PositiveSmallIntegerField(default=1, validators=[MinValueValidator(1)])
    sweep_option = models.CharField(max_length=60, blank=True, help_text="Option that a sweep varies: request_rate …")
    sweep_values = models.JSONField(default=list, blank=True, help_text="Its values, like [1, 2, 4, 8].")
    tags = models.JSONField(default=list, blank=True, help_text='Words for the runs, like ["nightly"].')

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="scenario_kind"),
            models.CheckConstraint(condition=Q(repeats__gte=1), name="scenario_repeats"),
            models.CheckConstraint(condition=Q(max_seconds__gte=1), name="scenario_max_seconds"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_sweep(self) -> bool:
        return bool(self.sweep_option)

    def options(self, sweep_value: object = None) -> dict[str, object]:
        """The options of one run's command, by name."""
        dataset = self.dataset.options if self.dataset else {}
        goodput = {"goodput": self.slos} if self.slos else {}
        swept = {} if sweep_value is None else {self.sweep_option: sweep_value}
        return {**self.target.options, **dataset, **self.profile, **goodput, "seed": self.seed, **swept}

    def clean(self) -> None:
        """Refuse what the command would refuse, and name the field."""
        if not hasattr(self, "target"):
            return  # said already
        if not isinstance(self.profile, dict):  # validators do not see an empty list
            raise ValidationError({"profile": "must be an object of option names and values"})
        if not isinstance(self.tags, list) or not all(isinstance(tag, str) for tag in self.tags):
            raise ValidationError({"tags": "must be a list of words"})
        if not isinstance(self.sweep_values, list) or bool(self.sweep_values) != bool(self.sweep_option):
            raise ValidationError({"sweep_values": "a sweep has an option and a list of values for it"})
        if not all(isinstance(value, int | float) for value in self.sweep_values):
            raise ValidationError({"sweep_values": "must be numbers"})
        with _naming("slos"):
            profiles.check_slos(self.slos)
        if self.sweep_option:
            with _naming("sweep_option"):
                profiles.check_names([self.sweep_option])
        for value in self.sweep_values or [None]:
            with _naming("profile" if value is None else "sweep_values"):
                profiles.check(self.kind, self.options(value))


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """What the generator refuses is refused with the name of the form's field."""
    try:
        yield
    except profiles.BadOption as error:
        raise ValidationError({field: str(error)}) from None


class Schedule(PeriodicTask):
    """When a scenario runs: a periodic task of Celery beat that also knows its scenario.

    It is one row of beat's own table and one of ours, so that the two cannot differ.
    """

    # Named, since the way back would by itself be called `schedule`, which is how beat asks a task for its times.
    periodictask_ptr = models.OneToOneField(
        PeriodicTask, models.CASCADE, parent_link=True, primary_key=True, related_name="of_scenario"
    )
    scenario = models.ForeignKey(Scenario, models.CASCADE, related_name="schedules")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.task = RUN_SCENARIO
        self.kwargs = json.dumps({"scenario": self.scenario_id, "origin": "schedule"})
        if self.expires is None:
            self.expire_seconds = self.expire_seconds or MESSAGE_SECONDS
        super().save(*args, **kwargs)
