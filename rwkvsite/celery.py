"""The Celery application: benchmarks, sweeps, batch jobs and the removal of what has expired."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rwkvsite.settings")

app = Celery("rwkvsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
