"""The benchmarks in the admin: one module for each kind of page."""

from benchmarks.admin import gates, runs, scenarios, targets
from benchmarks.evals import admin as eval_runs
from benchmarks.evals import sweep_admin as eval_sweeps

__all__ = ["eval_runs", "eval_sweeps", "gates", "runs", "scenarios", "targets"]
