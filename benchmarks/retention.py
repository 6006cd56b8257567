"""What is kept of old runs: their rows and summaries for ever, the single requests and seconds for a time."""

from datetime import timedelta

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from benchmarks.models import Baseline, RequestRecord, Run, TimeBucket


def remove_records(days: float) -> int:
    """Delete request records and seconds of the runs that were over so many days ago; 0 deletes nothing.

    Baselines keep theirs, with all runs of their series: later runs are compared with them. Returns of how many runs
    something was deleted. One run at a time, so that nobody waits long for the database.
    """
    if not days:
        return 0
    old = Run.objects.filter(finished__lt=timezone.now() - timedelta(days=days))
    pinned = Baseline.objects.filter(Q(run=OuterRef("pk")) | Q(run__series=OuterRef("series")) & ~Q(run__series=""))
    parts = (RequestRecord, TimeBucket)
    left = [Exists(part.objects.filter(run=OuterRef("pk"))) for part in parts]
    keys = list(old.filter(left[0] | left[1]).exclude(Exists(pinned)).order_by("pk").values_list("pk", flat=True))
    for key in keys:
        for part in parts:
            part.objects.filter(run=key).delete()
    return len(keys)
