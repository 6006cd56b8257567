import django.utils.timezone
from django.db import migrations, models
from django.db.models import Max


def count_branches(apps, schema_editor):
    """Conversations that there are go on behind their highest number."""
    Session = apps.get_model("rwkv_sessions", "Session")
    Conversation = apps.get_model("rwkv_sessions", "Conversation")
    found = (
        Session.objects.filter(branch__isnull=False)
        .order_by()
        .values_list("owner", "conversation")
        .annotate(branch=Max("branch"), used=Max("last_used"))
    )
    counters = [
        Conversation(owner=owner, key=key, last_branch=branch, last_used=used) for owner, key, branch, used in found
    ]
    Conversation.objects.bulk_create(counters, batch_size=1000)


class Migration(migrations.Migration):
    dependencies = [
        ("rwkv_sessions", "0005_schedule_sample_levels"),
    ]

    operations = [
        migrations.CreateModel(
            name="Conversation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", models.CharField(max_length=100)),
                ("key", models.CharField(max_length=200)),
                (
                    "last_branch",
                    models.PositiveIntegerField(default=0, help_text="The highest number that was given out."),
                ),
                ("last_used", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("owner", "key"), name="conversation_key")],
            },
        ),
        migrations.RunPython(count_branches, migrations.RunPython.noop),
    ]
