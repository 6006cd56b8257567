"""Rules that a figure must keep, and what became of them.

A rule is for the runs of one scenario, or for those of one eval: both have a summary, and a rule names a figure in it.
"""

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from benchmarks.evals.registry import EVALS
from benchmarks.evals.rules import check_figure
from benchmarks.evals.sweeps import EvalSweep, tasks
from benchmarks.loadgen import figures, gates
from benchmarks.models.runs import Run
from benchmarks.models.scenarios import Scenario


class Comparison(models.TextChoices):
    AT_MOST = gates.Direction.AT_MOST.value, "at most"
    AT_LEAST = gates.Direction.AT_LEAST.value, "at least"


class Outcome(models.TextChoices):
    PASS = gates.Outcome.PASS.value
    WARN = gates.Outcome.WARN.value
    FAIL = gates.Outcome.FAIL.value
    UNKNOWN = gates.Outcome.UNKNOWN.value


class Baseline(models.Model):
    """The run that others of its scenario are measured against. People set it; no run replaces it by itself."""

    scenario = models.OneToOneField(Scenario, models.CASCADE, related_name="baseline")
    run = models.ForeignKey(Run, models.PROTECT, related_name="+")
    set_at = models.DateTimeField(auto_now=True)
    set_by = models.CharField(max_length=150, blank=True, editable=False)

    class Meta:
        ordering = ["scenario"]

    def __str__(self) -> str:
        return f"{self.run} for {self.scenario}"

    def clean(self) -> None:
        if self.run_id and self.run.scenario_id != self.scenario_id:
            raise ValidationError({"run": "is a run of another scenario"})


class GateRule(models.Model):
    """A limit of one figure: in its own unit, or in percent of change against the baseline."""

    scenario = models.ForeignKey(Scenario, models.CASCADE, related_name="gates", null=True, blank=True)
    eval_task = models.CharField("eval", max_length=60, blank=True, choices=tasks, help_text="In place of a scenario.")
    sweep = models.ForeignKey(
        EvalSweep,
        models.CASCADE,
        related_name="gates",
        null=True,
        blank=True,
        help_text="For the runs of one sweep of the eval alone.",
    )
    metric = models.CharField(
        max_length=100, help_text="A figure of the summary: ttft.p99, output_throughput, for an eval acc …"
    )
    comparison = models.CharField(max_length=2, choices=Comparison, default=Comparison.AT_MOST)
    limit = models.FloatField(help_text="In the figure's own unit (latencies in ms), or in percent of change.")
    relative = models.BooleanField(default=False, help_text="Percent of change against the baseline.")
    enabled = models.BooleanField(default=True)

    class Meta:
        ordering = ["scenario", "eval_task", "sweep", "metric"]
        constraints = [
            models.CheckConstraint(condition=Q(scenario__isnull=True) ^ Q(eval_task=""), name="gate_scenario_or_eval"),
            models.CheckConstraint(condition=Q(comparison__in=Comparison.values), name="gate_comparison"),
            models.UniqueConstraint(
                fields=["scenario", "metric", "comparison", "relative"],
                condition=~Q(scenario=None),
                name="gate_once_for_scenario",
            ),
            models.UniqueConstraint(
                fields=["eval_task", "metric", "comparison", "relative"],
                condition=~Q(eval_task="") & Q(sweep=None),
                name="gate_once_for_eval",
            ),
            models.UniqueConstraint(
                fields=["sweep", "metric", "comparison", "relative"],
                condition=~Q(sweep=None),
                name="gate_once_for_sweep",
            ),
            models.CheckConstraint(condition=Q(sweep=None) | ~Q(eval_task=""), name="gate_sweep_of_eval"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} {self.get_comparison_display()} {self.limit_words}"

    @property
    def limit_words(self) -> str:
        return f"{self.limit:+g} %" if self.relative else f"{self.limit:g}"

    def clean(self) -> None:
        if bool(self.scenario_id) == bool(self.eval_task):
            raise ValidationError("a rule is for a scenario or for an eval")
        if self.sweep and self.sweep.task != self.eval_task:
            raise ValidationError({"sweep": f"is a sweep of {self.sweep.task}"})
        try:
            if self.scenario_id:
                figures.figure(self.metric)
            elif self.eval_task in EVALS:
                check_figure(self.eval_task, self.metric)
        except ValueError as error:
            raise ValidationError({"metric": str(error)}) from None


class GateResult(models.Model):
    run = models.ForeignKey(Run, models.CASCADE, related_name="gate_results")
    rule = models.ForeignKey(GateRule, models.CASCADE, related_name="results")
    outcome = models.CharField(max_length=20, choices=Outcome)
    value = models.FloatField(null=True, help_text="What was held against the limit.")
    words = models.TextField(blank=True)
    decided = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["rule"]
        constraints = [
            models.UniqueConstraint(fields=["run", "rule"], name="gate_result_once"),
            models.CheckConstraint(condition=Q(outcome__in=Outcome.values), name="gate_outcome"),
        ]

    def __str__(self) -> str:
        return f"{self.rule}: {self.outcome}"
