import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

import benchmarks.allowed
import benchmarks.models.runs
import benchmarks.models.targets

TASK = "benchmarks.tasks.tend_runs"


def schedule(apps, schema_editor):
    IntervalSchedule = apps.get_model("django_celery_beat", "IntervalSchedule")
    PeriodicTask = apps.get_model("django_celery_beat", "PeriodicTask")
    minutely, _ = IntervalSchedule.objects.get_or_create(every=1, period="minutes")
    PeriodicTask.objects.get_or_create(
        name="Tend benchmark runs",
        defaults={
            "task": TASK,
            "interval": minutely,
            "description": "Ends the runs whose worker died, and starts those that wait.",
        },
    )


def unschedule(apps, schema_editor):
    apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task=TASK).delete()


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("django_celery_beat", "0019_alter_periodictasks_options"),
    ]

    operations = [
        migrations.CreateModel(
            name="Dataset",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("kind", models.CharField(default="random", help_text="--dataset-name of the bench.", max_length=40)),
                (
                    "parameters",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Options of this kind of data set.",
                        validators=[benchmarks.models.targets.validate_options],
                    ),
                ),
                (
                    "path",
                    models.CharField(
                        blank=True,
                        help_text="File below the folder benchmarks/datasets of VAR_DIR.",
                        max_length=300,
                    ),
                ),
                ("sha256", models.CharField(blank=True, editable=False, max_length=64)),
                ("rows", models.PositiveBigIntegerField(blank=True, editable=False, null=True)),
                (
                    "length_stats",
                    models.JSONField(
                        blank=True, default=dict, editable=False, help_text="Characters of the rows: min, mean, max."
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Target",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "base_url",
                    models.CharField(
                        help_text="Loopback, or an origin of the setting BENCHMARK_TARGETS.",
                        max_length=300,
                        validators=[benchmarks.allowed.check_target_url],
                    ),
                ),
                (
                    "backend",
                    models.CharField(
                        default="openai", help_text="The wire protocol: --backend of the bench.", max_length=40
                    ),
                ),
                ("endpoint", models.CharField(blank=True, help_text="Empty: the back end's own.", max_length=200)),
                (
                    "model",
                    models.CharField(blank=True, help_text="Empty: the first that the target lists.", max_length=200),
                ),
                (
                    "api_key_variable",
                    models.CharField(
                        blank=True,
                        help_text="Name of the environment variable that holds the key.",
                        max_length=100,
                        validators=[benchmarks.models.targets.validate_key_variable],
                    ),
                ),
                (
                    "headers",
                    models.JSONField(blank=True, default=dict, validators=[benchmarks.models.targets.validate_headers]),
                ),
                ("notes", models.TextField(blank=True)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Scenario",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("serve", "requests at a rate"),
                            ("clients", "a fixed number of clients"),
                            ("multiturn", "conversations"),
                        ],
                        default="serve",
                        max_length=20,
                    ),
                ),
                (
                    "profile",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text='Options of the command by name, like {"num_prompts": 300, "request_rate": 20}.',
                        validators=[benchmarks.models.targets.validate_options],
                    ),
                ),
                (
                    "slos",
                    models.JSONField(
                        blank=True, default=dict, help_text='Limits in ms for goodput, like {"ttft": 200, "tpot": 50}.'
                    ),
                ),
                (
                    "max_seconds",
                    models.PositiveIntegerField(
                        default=3600,
                        help_text="A run that takes longer is stopped, and failed.",
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                ("seed", models.PositiveIntegerField(default=0)),
                (
                    "repeats",
                    models.PositiveSmallIntegerField(
                        default=1, validators=[django.core.validators.MinValueValidator(1)]
                    ),
                ),
                (
                    "sweep_option",
                    models.CharField(blank=True, help_text="Option that a sweep varies: request_rate …", max_length=60),
                ),
                (
                    "sweep_values",
                    models.JSONField(blank=True, default=list, help_text="Its values, like [1, 2, 4, 8]."),
                ),
                ("tags", models.JSONField(blank=True, default=list, help_text='Words for the runs, like ["nightly"].')),
                (
                    "dataset",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="scenarios",
                        to="benchmarks.dataset",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="scenarios", to="benchmarks.target"
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "key",
                    models.CharField(
                        default=benchmarks.models.runs.new_key, editable=False, max_length=64, unique=True
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("serve", "requests at a rate"),
                            ("clients", "a fixed number of clients"),
                            ("multiturn", "conversations"),
                            ("imported", "imported"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "origin",
                    models.CharField(
                        choices=[
                            ("admin", "Admin"),
                            ("schedule", "Schedule"),
                            ("terminal", "Terminal"),
                            ("import", "Import"),
                        ],
                        default="admin",
                        max_length=20,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("lost", "Lost"),
                        ],
                        default="queued",
                        max_length=20,
                    ),
                ),
                ("cancel_requested", models.BooleanField(default=False)),
                ("error", models.TextField(blank=True, help_text="Why it failed, in the words of what failed.")),
                ("created", models.DateTimeField(default=django.utils.timezone.now)),
                ("started", models.DateTimeField(blank=True, null=True)),
                ("finished", models.DateTimeField(blank=True, null=True)),
                ("heartbeat", models.DateTimeField(blank=True, editable=False, null=True)),
                ("pid", models.PositiveIntegerField(blank=True, editable=False, null=True)),
                ("host", models.CharField(blank=True, max_length=255)),
                ("progress", models.JSONField(blank=True, default=dict, editable=False)),
                (
                    "series",
                    models.CharField(
                        blank=True, help_text="Runs that were queued together share this key.", max_length=64
                    ),
                ),
                ("sweep_value", models.FloatField(blank=True, null=True)),
                ("repeat", models.PositiveSmallIntegerField(default=1)),
                ("tags", models.JSONField(blank=True, default=list)),
                ("notes", models.TextField(blank=True)),
                (
                    "configuration",
                    models.JSONField(default=dict, help_text="Target, data set and options as they were."),
                ),
                ("environment", models.JSONField(blank=True, default=dict)),
                ("server", models.JSONField(blank=True, default=dict)),
                ("rate_changes", models.JSONField(blank=True, default=list)),
                ("client_verdict", models.CharField(blank=True, max_length=20)),
                ("client_health", models.JSONField(blank=True, default=dict)),
                ("summary", models.JSONField(blank=True, default=dict)),
                ("duration", models.FloatField(blank=True, null=True, verbose_name="duration, s")),
                ("requests", models.PositiveIntegerField(blank=True, null=True)),
                ("failed", models.PositiveIntegerField(blank=True, null=True)),
                ("success_rate", models.FloatField(blank=True, null=True)),
                ("request_throughput", models.FloatField(blank=True, null=True, verbose_name="requests/s")),
                ("output_throughput", models.FloatField(blank=True, null=True, verbose_name="output tokens/s")),
                ("total_throughput", models.FloatField(blank=True, null=True, verbose_name="tokens/s")),
                ("goodput", models.FloatField(blank=True, null=True, verbose_name="good requests, share")),
                ("ttft_median", models.FloatField(blank=True, null=True, verbose_name="TTFT median, ms")),
                ("ttft_p99", models.FloatField(blank=True, null=True, verbose_name="TTFT p99, ms")),
                ("tpot_median", models.FloatField(blank=True, null=True, verbose_name="TPOT median, ms")),
                ("tpot_p99", models.FloatField(blank=True, null=True, verbose_name="TPOT p99, ms")),
                ("e2el_median", models.FloatField(blank=True, null=True, verbose_name="E2EL median, ms")),
                ("e2el_p99", models.FloatField(blank=True, null=True, verbose_name="E2EL p99, ms")),
                (
                    "scenario",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="benchmarks.scenario",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="benchmarks.target",
                    ),
                ),
            ],
            options={
                "ordering": ["-pk"],
                "permissions": [("view_request_text", "Can see the texts of a run's requests")],
            },
        ),
        migrations.CreateModel(
            name="GateRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "eval_task",
                    models.CharField(
                        blank=True,
                        help_text="Name of an eval, in place of a scenario.",
                        max_length=60,
                        verbose_name="eval",
                    ),
                ),
                (
                    "metric",
                    models.CharField(
                        help_text="A figure of the summary: ttft.p99, output_throughput, for an eval acc …",
                        max_length=100,
                    ),
                ),
                (
                    "comparison",
                    models.CharField(choices=[("<=", "at most"), (">=", "at least")], default="<=", max_length=2),
                ),
                (
                    "limit",
                    models.FloatField(help_text="In the figure's own unit (latencies in ms), or in percent of change."),
                ),
                ("relative", models.BooleanField(default=False, help_text="Percent of change against the baseline.")),
                ("enabled", models.BooleanField(default=True)),
                (
                    "scenario",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="gates",
                        to="benchmarks.scenario",
                    ),
                ),
            ],
            options={
                "ordering": ["scenario", "eval_task", "metric"],
            },
        ),
        migrations.CreateModel(
            name="Baseline",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("set_at", models.DateTimeField(auto_now=True)),
                ("set_by", models.CharField(blank=True, editable=False, max_length=150)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="benchmarks.run"
                    ),
                ),
                (
                    "scenario",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="baseline", to="benchmarks.scenario"
                    ),
                ),
            ],
            options={
                "ordering": ["scenario"],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "periodictask_ptr",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        parent_link=True,
                        primary_key=True,
                        related_name="of_scenario",
                        serialize=False,
                        to="django_celery_beat.periodictask",
                    ),
                ),
                (
                    "scenario",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="schedules", to="benchmarks.scenario"
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
            bases=("django_celery_beat.periodictask",),
        ),
        migrations.CreateModel(
            name="TimeBucket",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("second", models.IntegerField(help_text="Since the run's start; negative in a warm-up ahead of it.")),
                ("sent", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("tokens", models.PositiveIntegerField(default=0)),
                ("in_flight", models.FloatField(default=0)),
                ("ttft_p50_ms", models.FloatField(null=True)),
                ("ttft_p99_ms", models.FloatField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="buckets", to="benchmarks.run"
                    ),
                ),
            ],
            options={
                "ordering": ["run", "second"],
            },
        ),
        migrations.CreateModel(
            name="RequestRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("index", models.PositiveIntegerField()),
                ("worker", models.PositiveSmallIntegerField(default=0)),
                ("user", models.PositiveIntegerField(null=True)),
                ("session", models.CharField(max_length=200, null=True)),
                ("turn", models.PositiveIntegerField(default=0)),
                (
                    "phase",
                    models.CharField(
                        choices=[("warmup", "warmup"), ("ramp", "ramp"), ("measure", "measure"), ("drain", "drain")],
                        max_length=10,
                    ),
                ),
                ("intended", models.FloatField(null=True)),
                ("sent", models.FloatField(null=True)),
                ("headers", models.FloatField(null=True)),
                ("first_chunk", models.FloatField(null=True)),
                ("last_chunk", models.FloatField(null=True)),
                ("done", models.FloatField(null=True)),
                ("prompt_tokens", models.PositiveIntegerField(null=True)),
                ("prompt_tokens_source", models.CharField(blank=True, max_length=10)),
                ("output_tokens", models.PositiveIntegerField(null=True)),
                ("output_tokens_source", models.CharField(blank=True, max_length=10)),
                ("reasoning_tokens", models.PositiveIntegerField(null=True)),
                ("cached_tokens", models.PositiveIntegerField(null=True)),
                ("expected_output_tokens", models.PositiveIntegerField(null=True)),
                ("finish_reason", models.CharField(max_length=100, null=True)),
                ("http_status", models.PositiveSmallIntegerField(null=True)),
                ("error", models.CharField(blank=True, max_length=30)),
                ("error_text", models.TextField(blank=True)),
                ("bytes_in", models.PositiveBigIntegerField(default=0)),
                ("connection_reused", models.BooleanField(null=True)),
                ("text", models.TextField(null=True)),
                ("chunks", models.BinaryField(help_text="The chunks, as benchmarks.storage packs them.")),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="records", to="benchmarks.run"
                    ),
                ),
            ],
            options={
                "ordering": ["run", "index", "pk"],
                "indexes": [
                    models.Index(fields=["run", "index"], name="request_run_index"),
                    models.Index(
                        condition=models.Q(("error", ""), _negated=True), fields=["run", "error"], name="request_failed"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="GateResult",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "outcome",
                    models.CharField(
                        choices=[("pass", "Pass"), ("warn", "Warn"), ("fail", "Fail"), ("not comparable", "Unknown")],
                        max_length=20,
                    ),
                ),
                ("value", models.FloatField(help_text="What was held against the limit.", null=True)),
                ("words", models.TextField(blank=True)),
                ("decided", models.DateTimeField(auto_now=True)),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="results", to="benchmarks.gaterule"
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="gate_results", to="benchmarks.run"
                    ),
                ),
            ],
            options={
                "ordering": ["rule"],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "rule"), name="gate_result_once"),
                    models.CheckConstraint(
                        condition=models.Q(("outcome__in", ["pass", "warn", "fail", "not comparable"])),
                        name="gate_outcome",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="gaterule",
            constraint=models.CheckConstraint(
                condition=models.Q(("scenario__isnull", True), ("eval_task", ""), _connector="XOR"),
                name="gate_scenario_or_eval",
            ),
        ),
        migrations.AddConstraint(
            model_name="gaterule",
            constraint=models.CheckConstraint(
                condition=models.Q(("comparison__in", ["<=", ">="])), name="gate_comparison"
            ),
        ),
        migrations.AddConstraint(
            model_name="gaterule",
            constraint=models.UniqueConstraint(
                condition=models.Q(("scenario", None), _negated=True),
                fields=("scenario", "metric", "comparison", "relative"),
                name="gate_once_for_scenario",
            ),
        ),
        migrations.AddConstraint(
            model_name="gaterule",
            constraint=models.UniqueConstraint(
                condition=models.Q(("eval_task", ""), _negated=True),
                fields=("eval_task", "metric", "comparison", "relative"),
                name="gate_once_for_eval",
            ),
        ),
        migrations.AddConstraint(
            model_name="scenario",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["serve", "clients", "multiturn"])), name="scenario_kind"
            ),
        ),
        migrations.AddConstraint(
            model_name="scenario",
            constraint=models.CheckConstraint(condition=models.Q(("repeats__gte", 1)), name="scenario_repeats"),
        ),
        migrations.AddConstraint(
            model_name="scenario",
            constraint=models.CheckConstraint(condition=models.Q(("max_seconds__gte", 1)), name="scenario_max_seconds"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["scenario", "-created"], name="run_scenario"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["target", "-created"], name="run_target"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["status", "id"], name="run_status"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=models.Q(("series", ""), _negated=True), fields=["series"], name="run_series"),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("status__in", ["queued", "running", "done", "failed", "cancelled", "lost"])),
                name="run_status_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["serve", "clients", "multiturn", "imported"])), name="run_kind_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("finished", None), ("status__in", ("queued", "running"))),
                    models.Q(
                        models.Q(("status__in", ("queued", "running")), _negated=True), ("finished__isnull", False)
                    ),
                    _connector="OR",
                ),
                name="run_finished_when_over",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("success_rate", None),
                    models.Q(("success_rate__gte", 0), ("success_rate__lte", 1)),
                    _connector="OR",
                ),
                name="run_success_rate",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", "running")), fields=("status",), name="run_one_at_a_time"
            ),
        ),
        migrations.AddConstraint(
            model_name="timebucket",
            constraint=models.UniqueConstraint(fields=("run", "second"), name="bucket_second_once"),
        ),
        migrations.RunPython(schedule, unschedule),
    ]
