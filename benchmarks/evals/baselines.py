"""What a run is held against: the run that somebody pinned for its sweep and label, else the first of its series."""

from benchmarks.evals.models import EvalBaseline, EvalRun
from benchmarks.models.runs import Status


def baseline_of(run: EvalRun) -> EvalRun | None:
    """The done run that this one is held against by default; None where there is none."""
    return pinned_for(run) or _done_before_it(run)


def pinned_for(run: EvalRun) -> EvalRun | None:
    """The run that is pinned for this one's sweep and label; None without one, and for that run itself."""
    if run.sweep_id is None:
        return None
    pinned = EvalBaseline.objects.filter(sweep=run.sweep_id, label=run.label).exclude(run=run)
    return next((baseline.run for baseline in pinned.select_related("run")), None)


def first_of_series(run: EvalRun) -> EvalRun | None:
    """The first of the runs that were queued together, which may be this one; None for a run by itself."""
    return EvalRun.objects.filter(series=run.series).order_by("pk").first() if run.series else None


def _done_before_it(run: EvalRun) -> EvalRun | None:
    first = first_of_series(run)
    return first if first and first.pk != run.pk and first.status == Status.DONE else None
