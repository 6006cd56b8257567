"""The benchmarks in the admin: one module for each kind of page."""

from benchmarks.admin import gates, runs, scenarios, targets
from benchmarks.evals import admin as evals

__all__ = ["evals", "gates", "runs", "scenarios", "targets"]
