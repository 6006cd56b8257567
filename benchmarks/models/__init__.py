"""What the console keeps: targets, data sets, scenarios and their schedules; runs and what they measured; gates."""

from benchmarks.evals import models as evals  # noqa: F401  (their tables belong to this app)
from benchmarks.models.gates import Baseline, GateResult, GateRule
from benchmarks.models.runs import Origin, Run, Status
from benchmarks.models.samples import RequestRecord, TimeBucket
from benchmarks.models.scenarios import Scenario, Schedule
from benchmarks.models.targets import Dataset, Target

__all__ = [
    "Baseline",
    "Dataset",
    "GateResult",
    "GateRule",
    "Origin",
    "RequestRecord",
    "Run",
    "Scenario",
    "Schedule",
    "Status",
    "Target",
    "TimeBucket",
]
