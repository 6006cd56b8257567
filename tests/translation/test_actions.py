"""Changes of jobs that something comes in between of: all or nothing, and in an order in which none waits for ever."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models.signals import pre_delete, pre_save
from django.utils import timezone

from inference.translation import actions
from inference.translation.files import read_document
from inference.translation.formats import FORMATS
from inference.translation.formats.document import Options
from inference.translation.models import Status, TranslationJob, TranslationSource
from tests.site import test_postgres
from tests.site.test_postgres import database_url  # noqa: F401
from tests.site.test_settings import manage

# A runner has locked its job when somebody deletes it, and then stores a line.
DELETE_UNDER_A_RUNNER = """
import threading, time
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from inference.translation import actions
from inference.translation.models import TranslationJob, TranslationLine

in_the_admin = admin.site.get_model_admin(TranslationJob)
jobs = TranslationJob.objects

def delete_it():
    WAY
    connection.close()

WAITING = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
user = get_user_model().objects.create_user("translator")
job = TranslationJob.objects.create(user=user, status="running", lease="mine", total=1)
TranslationLine.objects.create(job=job, number=1, source="a")
deleting = threading.Thread(target=delete_it)
with transaction.atomic(), connection.cursor() as cursor:
    job.write(done=1)
    deleting.start()
    waiting = False
    while not waiting:
        assert deleting.is_alive()
        time.sleep(0.01)
        waiting = cursor.execute(WAITING).fetchone()[0]
    print(job.lines.update(status="done"))
deleting.join()
print(TranslationJob.objects.count())
"""
WAYS = {
    "page": "actions.delete(jobs.get(pk=job.pk))",
    "admin, one": "in_the_admin.delete_model(None, jobs.get(pk=job.pk))",
    "admin, several": "in_the_admin.delete_queryset(None, jobs.filter(pk=job.pk))",
}


@pytest.mark.skipif(not test_postgres.URL, reason="TEST_POSTGRES_URL is not set")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_postgresql_finds_no_deadlock_of_a_runner_and_who_deletes_its_job(tmp_path, database_url, way):  # noqa: F811
    environment = {"VAR_DIR": str(tmp_path), "DATABASE_URL": database_url}
    assert manage("migrate", "--verbosity", "0", **environment).returncode == 0
    done = manage("shell", "--no-imports", "-c", DELETE_UNDER_A_RUNNER.replace("WAY", way, 1), **environment)
    assert done.stdout.split() == ["1", "0"], done.stderr
    assert "deadlock" not in done.stderr


def test_a_job_that_is_asked_for_again_does_not_expire(new_job, redis_url):
    jobs = [new_job("a"), new_job("b")]
    for job in jobs:
        actions.cancel(job)
    TranslationJob.objects.update(ended_at=timezone.now() - timedelta(days=31))

    def ask_again(instance: TranslationJob, **kwargs: object) -> None:
        """For the one that is not deleted yet, while the other is."""
        (other,) = [job for job in jobs if job.pk != instance.pk]
        assert actions.retry_rest(other)

    pre_delete.connect(ask_again, sender=TranslationJob)
    try:
        assert actions.expire(30) == 1
    finally:
        pre_delete.disconnect(ask_again, sender=TranslationJob)
    assert TranslationJob.objects.get().status == Status.QUEUED


def test_an_error_at_the_last_of_several_files_queues_none(user, redis_url):
    def refuse_the_third(instance: TranslationSource, **kwargs: object) -> None:
        if instance.text == "third":
            raise OperationalError("the disk is full")

    texts = ["first", "second", "third"]
    documents = [(f"{text}.txt", read_document(text.encode(), FORMATS["txt"], Options())) for text in texts]
    pre_save.connect(refuse_the_third, sender=TranslationSource)
    try:
        with pytest.raises(OperationalError):
            actions.create_jobs(user, documents, source_language="en", target_language="zh")
    finally:
        pre_save.disconnect(refuse_the_third, sender=TranslationSource)
    assert not TranslationJob.objects.exists()
