"""What is kept of old runs: their rows and summaries for ever, the single requests and seconds for a time."""

import time
from contextlib import suppress
from datetime import timedelta

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from benchmarks.models import Baseline, RequestRecord, Run, TimeBucket
from benchmarks.models.runs import files_folder

LEFT_SECONDS = 86400.0


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


def remove_left_files() -> int:
    """Delete the files of runs that are over, or were deleted, which nothing has touched for a day: somebody was killed
    before it removed them. Returns of how many."""
    folder, count = files_folder(), 0
    if not folder.is_dir():
        return 0
    paths = list(folder.iterdir())  # before we ask whose they are: a run is there before its files
    keys = set(Run.objects.open().values_list("key", flat=True))
    for path in paths:
        key = path.name.removeprefix(".").partition(".")[0]  # what is being written begins with a dot
        with suppress(FileNotFoundError):  # somebody else removes it
            if key not in keys and time.time() - path.stat().st_mtime > LEFT_SECONDS:
                path.unlink()
                count += 1
    return count
