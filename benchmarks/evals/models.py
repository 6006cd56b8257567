"""What the console keeps of evals: a run, and a row for each document of it. Sweeps are in `sweeps`."""

import os
import secrets
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.db.models import Q
from django.utils import timezone

from benchmarks.evals.evaluation import GROUP_CHARACTERS
from benchmarks.evals.sweeps import EvalSchedule, EvalSweep
from benchmarks.models.runs import OPEN, Run, Status, unheard

__all__ = ["EvalBaseline", "EvalItem", "EvalRun", "EvalSchedule", "EvalSweep"]


def new_key() -> str:
    return f"eval-{secrets.token_hex(8)}"


class EvalRunQuerySet(models.QuerySet["EvalRun"]):
    def open(self) -> "EvalRunQuerySet":
        return self.filter(status__in=OPEN)

    def silent(self) -> "EvalRunQuerySet":
        """Running by their row, while nobody says so any more."""
        return self.filter(unheard(), status=Status.RUNNING)

    def claim_next(self) -> "EvalRun | None":
        """The oldest queued run whose server has no other one, which is the caller's now; None without such a run.

        The database itself admits one running run for each server. While a load is measured, none begins: a load and
        an eval that are claimed at the same time see each other afterwards, and whoever does puts its own back.
        """
        if Run.objects.filter(status=Status.RUNNING).exists():
            return None
        busy = self.filter(status=Status.RUNNING).values("base_url")
        for key in (
            self.filter(status=Status.QUEUED).exclude(base_url__in=busy).order_by("pk").values_list("pk", flat=True)
        ):
            now = timezone.now()
            mine = {"status": Status.RUNNING, "heartbeat": now, "host": socket.gethostname(), "pid": os.getpid()}
            try:
                with transaction.atomic():
                    claimed = self.filter(pk=key, status=Status.QUEUED).update(started=now, **mine)
            except IntegrityError:  # another worker began one for this server
                continue
            if claimed:
                run = self.get(pk=key)
                if not Run.objects.filter(status=Status.RUNNING).exists():
                    return run
                run.put_back()
                return None
        return None


class EvalRun(models.Model):
    """`configuration` is frozen when the run is queued; the summary and the rows of items are what came of it."""

    key = models.CharField(max_length=64, unique=True, default=new_key, editable=False)
    sweep = models.ForeignKey(EvalSweep, models.SET_NULL, related_name="runs", null=True, blank=True)
    series = models.CharField(max_length=64, blank=True, help_text="Runs that were queued together share this key.")
    task = models.CharField("eval", max_length=60)
    label = models.CharField(max_length=200, blank=True)
    base_url = models.CharField("server", max_length=300)
    configuration = models.JSONField(default=dict, help_text="Server, data and options as they were.")

    status = models.CharField(max_length=20, choices=Status, default=Status.QUEUED)
    cancel_requested = models.BooleanField(default=False)
    error = models.TextField(blank=True, help_text="Why it failed, in the words of what failed.")
    created = models.DateTimeField(default=timezone.now)
    started = models.DateTimeField(null=True, blank=True)
    finished = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(null=True, blank=True, editable=False)
    host = models.CharField(max_length=255, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True, editable=False)

    n = models.PositiveIntegerField("documents answered", default=0)
    documents = models.PositiveIntegerField(null=True, blank=True)
    summary = models.JSONField(default=dict, blank=True)
    gates = models.JSONField(default=list, blank=True, help_text="What became of the rules for this eval.")

    # Some of the summary again, for lists and filters.
    model = models.CharField(max_length=200, blank=True)
    fingerprint = models.CharField(max_length=64, blank=True)
    backend = models.CharField(max_length=40, blank=True)
    device = models.CharField(max_length=100, blank=True)
    dtype = models.CharField("data type", max_length=60, blank=True, help_text="Of weights and states.")
    acc = models.FloatField("accuracy", null=True, blank=True)
    acc_stderr = models.FloatField(null=True, blank=True)
    ppl = models.FloatField("perplexity", null=True, blank=True)
    ppl_stderr = models.FloatField(null=True, blank=True)
    bits_per_byte = models.FloatField(null=True, blank=True)
    documents_per_second = models.FloatField("documents/s", null=True, blank=True)

    objects = EvalRunQuerySet.as_manager()

    class Meta:
        verbose_name = "eval run"
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["task", "-created"], name="evalrun_task"),
            models.Index(fields=["status", "id"], name="evalrun_status"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="evalrun_status_known"),
            models.CheckConstraint(condition=Q(acc=None) | Q(acc__gte=0, acc__lte=1), name="evalrun_acc"),
            models.UniqueConstraint(
                fields=["base_url"], condition=Q(status="running"), name="evalrun_one_for_a_server"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.label or self.model or self.key}"

    @property
    def engine_words(self) -> str:
        """Back end, device and data type, as far as the server tells."""
        return " ".join(filter(None, (self.backend, self.device, self.dtype))) or "–"

    @property
    def folder(self) -> Path:
        """Where its command keeps items and summary; a run that goes on needs them."""
        return settings.RWKV.var_dir / "benchmarks" / "evals" / self.key

    @property
    def host_of_server(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    def beat(self, **values: Any) -> bool:
        """Say that the run is supervised; False when it is not ours to supervise any more."""
        if not self._mine().update(heartbeat=timezone.now(), **values):
            return False
        self.refresh_from_db(fields=["cancel_requested", *values])
        return True

    def lose(self) -> bool:
        """End a run whose supervisor died; False when it is there after all, or another process does this."""
        ended = {"status": Status.LOST, "error": "the worker that ran it died", "finished": timezone.now()}
        return bool(EvalRun.objects.silent().filter(pk=self.pk).update(**ended))

    def put_back(self) -> None:
        """Queue a run again that is to begin, or to go on, later, if it still is ours."""
        self._mine().update(status=Status.QUEUED)

    def _mine(self) -> EvalRunQuerySet:
        return EvalRun.objects.filter(pk=self.pk, status=Status.RUNNING, pid=os.getpid(), host=socket.gethostname())

    def end(self, status: Status, error: str = "") -> bool:
        """Close an open run; False when it was closed already."""
        ended = EvalRun.objects.open().filter(pk=self.pk)
        closed = ended.update(status=status, error=error, finished=timezone.now())
        self.refresh_from_db(fields=["status", "error", "finished"])
        return bool(closed)


class EvalBaseline(models.Model):
    """The run that others of its sweep and label are held against. People set it; no run replaces it by itself."""

    sweep = models.ForeignKey(EvalSweep, models.CASCADE, related_name="baselines")
    label = models.CharField(max_length=200, blank=True)
    run = models.ForeignKey(EvalRun, models.PROTECT, related_name="baselines")
    set_at = models.DateTimeField(auto_now=True)
    set_by = models.CharField(max_length=150, blank=True, editable=False)

    class Meta:
        verbose_name = "eval baseline"
        ordering = ["sweep", "label"]
        constraints = [models.UniqueConstraint(fields=["sweep", "label"], name="evalbaseline_once")]

    def __str__(self) -> str:
        return f"{self.run} for {self.sweep}"


class EvalItem(models.Model):
    """One document of a run."""

    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="items")
    doc = models.PositiveIntegerField("document", help_text="Its place in the data, from 0.")
    correct = models.BooleanField(null=True)
    logprob = models.FloatField(null=True, help_text="Natural logarithm, summed over the scored tokens.")
    predicted = models.TextField(blank=True)
    expected = models.TextField(blank=True)
    tokens = models.PositiveIntegerField(default=0, help_text="Scored or generated.")
    group = models.CharField(max_length=GROUP_CHARACTERS, blank=True)
    details = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = "eval document"
        ordering = ["run", "doc"]
        constraints = [models.UniqueConstraint(fields=["run", "doc"], name="evalitem_once")]

    def __str__(self) -> str:
        return f"document {self.doc} of run {self.run_id}"
