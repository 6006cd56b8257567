from django.db import migrations

TASK = "benchmarks.tasks.remove_old_records"


def schedule(apps, schema_editor):
    IntervalSchedule = apps.get_model("django_celery_beat", "IntervalSchedule")
    PeriodicTask = apps.get_model("django_celery_beat", "PeriodicTask")
    hourly, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
    PeriodicTask.objects.get_or_create(
        name="Remove old benchmark records",
        defaults={
            "task": TASK,
            "interval": hourly,
            "description": "Deletes the requests and seconds of the runs that were over BENCHMARK_TTL_DAYS ago.",
        },
    )


def unschedule(apps, schema_editor):
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task=TASK).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("benchmarks", "0003_warm_ups_and_supervisors"),
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [migrations.RunPython(schedule, unschedule)]
