"""What a fresh database has scheduled. In a process of its own: other tests empty the tables of this one."""

import json

from benchmarks.tasks import remove_old_records
from inference.batches import tasks as batch_tasks
from inference.tasks import remove_expired
from sessions.tasks import remove_old_sessions
from tests.site.test_settings import manage

SCRIPT = """
import json
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import ModelEntry
from rwkvsite.celery import app
entries = PeriodicTask.objects.filter(enabled=True).exclude(interval=None)
for task in PeriodicTask.objects.all():
    assert task.schedule == ModelEntry(task, app=app).schedule  # what beat makes of it; it disables what it cannot use
assert not PeriodicTask.objects.filter(enabled=False)
print(json.dumps({entry.task: [entry.interval.every, entry.interval.period] for entry in entries}))
"""


def test_migrations_schedule_the_periodic_tasks(tmp_path):
    migrated = manage("migrate", "--verbosity", "0", VAR_DIR=str(tmp_path))
    assert migrated.returncode == 0, migrated.stderr
    shown = manage("shell", "--no-imports", "-c", SCRIPT, VAR_DIR=str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    scheduled = json.loads(shown.stdout)
    assert scheduled[remove_expired.name] == [1, "hours"]
    assert scheduled[remove_old_sessions.name] == [1, "hours"]
    assert scheduled[remove_old_records.name] == [1, "hours"]
    assert [1, "minutes"] in [scheduled[name] for name in scheduled if name.startswith(batch_tasks.__name__)]
