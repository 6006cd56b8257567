"""A run: queued, executed by one worker, and kept with what it measured."""

import os
import secrets
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.db.models import Q
from django.utils import timezone

from benchmarks.models.scenarios import Kind, Scenario
from benchmarks.models.targets import Target

HEARTBEAT_SECONDS = 1.0
LOST_SECONDS = 15.0  # a run whose supervisor was silent for this long has none any more
AHEAD_SECONDS = 1800.0  # a supervisor says it will be quiet for less; a heartbeat further ahead is of another clock


def new_key() -> str:
    return f"run-{secrets.token_hex(8)}"


def files_folder() -> Path:
    """Of the files of all runs."""
    return settings.RWKV.var_dir / "benchmarks" / "runs"


def new_supervisor() -> str:
    return secrets.token_hex(8)


class Status(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


OPEN = (Status.QUEUED, Status.RUNNING)
IMPORTED = "imported"  # the kind of a run that another tool made
KINDS = [*Kind.choices, (IMPORTED, "imported")]


class Origin(models.TextChoices):
    ADMIN = "admin"
    SCHEDULE = "schedule"
    TERMINAL = "terminal"
    IMPORT = "import"


def unheard() -> Q:
    """Of runs whose supervisor says no more that they go on, also where the clock was set back since it did."""
    now = timezone.now()
    late, ahead = now - timedelta(seconds=LOST_SECONDS), now + timedelta(seconds=AHEAD_SECONDS)
    return Q(heartbeat__lt=late) | Q(heartbeat__gt=ahead)


def ended_lately() -> Q:
    """Of runs that ended within a day; not those whose worker may be judging them at this moment."""
    now = timezone.now()
    return Q(finished__range=(now - timedelta(days=1), now - timedelta(minutes=1)))


class RunQuerySet(models.QuerySet["Run"]):
    def open(self) -> "RunQuerySet":
        return self.filter(status__in=OPEN)

    def measured(self) -> "RunQuerySet":
        """Complete runs, which may be compared."""
        return self.filter(status=Status.DONE)

    def silent(self) -> "RunQuerySet":
        """Running by their row, while nobody says so any more."""
        return self.filter(unheard(), status=Status.RUNNING)

    def for_lists(self) -> "RunQuerySet":
        """Without the large columns that no list shows."""
        return self.defer(
            "environment", "server", "server_samples", "client_health", "summary", "rate_changes", "progress"
        )

    def claim_next(self) -> "Run | None":
        """The oldest queued run, which is the caller's now; None while another one runs, or nothing waits.

        Two loads at one time would measure each other, so the database itself admits one running run.
        """
        key = self.filter(status=Status.QUEUED).order_by("pk").values_list("pk", flat=True).first()
        if key is None:
            return None
        now = timezone.now()
        mine = {"status": Status.RUNNING, "started": now, "heartbeat": now, "host": socket.gethostname()}
        mine["supervisor"] = new_supervisor()
        try:
            with transaction.atomic():
                claimed = self.filter(pk=key, status=Status.QUEUED).update(**mine, pid=os.getpid())
        except IntegrityError:
            return None
        return self.get(pk=key) if claimed else None


class Run(models.Model):
    """`configuration` is frozen when the run is queued; what it measured is in `summary` and in the rows below it."""

    key = models.CharField(max_length=64, unique=True, default=new_key, editable=False)
    scenario = models.ForeignKey(Scenario, models.SET_NULL, related_name="runs", null=True, blank=True)
    target = models.ForeignKey(Target, models.SET_NULL, related_name="runs", null=True, blank=True)
    kind = models.CharField(max_length=20, choices=KINDS)
    origin = models.CharField(max_length=20, choices=Origin, default=Origin.ADMIN)
    status = models.CharField(max_length=20, choices=Status, default=Status.QUEUED)
    cancel_requested = models.BooleanField(default=False)
    error = models.TextField(blank=True, help_text="Why it failed, in the words of what failed.")

    created = models.DateTimeField(default=timezone.now)
    started = models.DateTimeField(null=True, blank=True)
    finished = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(null=True, blank=True, editable=False)
    supervisor = models.CharField(max_length=32, blank=True, editable=False)  # who may say that it goes on
    pid = models.PositiveIntegerField(null=True, blank=True, editable=False)
    host = models.CharField(max_length=255, blank=True)
    progress = models.JSONField(default=dict, blank=True, editable=False)

    series = models.CharField(max_length=64, blank=True, help_text="Runs that were queued together share this key.")
    sweep_value = models.FloatField(null=True, blank=True)
    repeat = models.PositiveSmallIntegerField(default=1)
    tags = models.JSONField(default=list, blank=True)
    notes = models.TextField(blank=True)

    configuration = models.JSONField(default=dict, help_text="Target, data set and options as they were.")
    environment = models.JSONField(default=dict, blank=True)
    server = models.JSONField(default=dict, blank=True)
    server_samples = models.JSONField(default=list, blank=True, help_text="What the server said once a second.")
    rate_changes = models.JSONField(default=list, blank=True)
    client_verdict = models.CharField(max_length=20, blank=True)
    client_health = models.JSONField(default=dict, blank=True)
    summary = models.JSONField(default=dict, blank=True)

    # Some of the summary again, for lists, filters and trends (benchmarks.summaries.COLUMNS).
    duration = models.FloatField("duration, s", null=True, blank=True)
    requests = models.PositiveIntegerField(null=True, blank=True)
    failed = models.PositiveIntegerField(null=True, blank=True)
    success_rate = models.FloatField(null=True, blank=True)
    request_throughput = models.FloatField("requests/s", null=True, blank=True)
    output_throughput = models.FloatField("output tokens/s", null=True, blank=True)
    total_throughput = models.FloatField("tokens/s", null=True, blank=True)
    goodput = models.FloatField("good requests, share", null=True, blank=True)
    ttft_median = models.FloatField("TTFT median, ms", null=True, blank=True)
    ttft_p99 = models.FloatField("TTFT p99, ms", null=True, blank=True)
    tpot_median = models.FloatField("TPOT median, ms", null=True, blank=True)
    tpot_p99 = models.FloatField("TPOT p99, ms", null=True, blank=True)
    e2el_median = models.FloatField("E2EL median, ms", null=True, blank=True)
    e2el_p99 = models.FloatField("E2EL p99, ms", null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        permissions = [("view_request_text", "Can see the texts of a run's requests")]
        indexes = [
            models.Index(fields=["scenario", "-created"], name="run_scenario"),
            models.Index(fields=["target", "-created"], name="run_target"),
            models.Index(fields=["status", "id"], name="run_status"),
            models.Index(fields=["series"], name="run_series", condition=~Q(series="")),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="run_status_known"),
            models.CheckConstraint(condition=Q(kind__in=[kind for kind, _ in KINDS]), name="run_kind_known"),
            models.CheckConstraint(
                condition=Q(status__in=OPEN, finished=None) | (~Q(status__in=OPEN) & Q(finished__isnull=False)),
                name="run_finished_when_over",
            ),
            models.CheckConstraint(
                condition=Q(success_rate=None) | Q(success_rate__gte=0, success_rate__lte=1), name="run_success_rate"
            ),
            models.UniqueConstraint(fields=["status"], condition=Q(status="running"), name="run_one_at_a_time"),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def seconds(self) -> float | None:
        """How long it took or takes by the clock on the wall."""
        return ((self.finished or timezone.now()) - self.started).total_seconds() if self.started else None

    @property
    def is_of_sweep(self) -> bool:
        return self.sweep_value is not None

    def repeats(self) -> RunQuerySet:
        """The finished runs of the same measurement: itself and its repeats, the oldest first."""
        return self._same_measurement().measured().order_by("pk")

    def waits_for_repeats(self) -> bool:
        """Whether a repeat of it is still to come, or runs."""
        return self._same_measurement().open().exists()

    def _same_measurement(self) -> RunQuerySet:
        if not self.series:
            return Run.objects.filter(pk=self.pk)
        return Run.objects.filter(series=self.series, sweep_value=self.sweep_value)

    def file(self, suffix: str) -> Path:
        """Where the run's command writes its result, its progress or its words."""
        return files_folder() / f"{self.key}.{suffix}"

    def beat(self, *, quiet_seconds: float = 0.0, **values: Any) -> bool:
        """Say that the run is supervised, and will be for so long without another word.

        False when it is not ours to supervise any more.
        """
        mine = Run.objects.filter(pk=self.pk, status=Status.RUNNING, supervisor=self.supervisor)
        if not mine.update(heartbeat=timezone.now() + timedelta(seconds=quiet_seconds), **values):
            return False
        self.refresh_from_db(fields=["cancel_requested", *values])
        return True

    def take_over(self) -> bool:
        """Become the supervisor of a run whose own is silent; False when it is not, or another was faster."""
        mine = {"supervisor": new_supervisor(), "heartbeat": timezone.now()}
        if not Run.objects.silent().filter(pk=self.pk).update(**mine):
            return False
        self.supervisor = mine["supervisor"]
        return True

    def put_back(self) -> None:
        """Queue a run again that was claimed and not begun, if it still is ours."""
        mine = Run.objects.filter(pk=self.pk, status=Status.RUNNING, supervisor=self.supervisor)
        mine.update(status=Status.QUEUED, started=None, heartbeat=None, supervisor="", pid=None, host="")

    def end(self, status: Status, error: str = "") -> bool:
        """Close an open run; False when it was closed already."""
        ended = Run.objects.open().filter(pk=self.pk).update(status=status, error=error, finished=timezone.now())
        self.refresh_from_db(fields=["status", "error", "finished"])
        return bool(ended)
