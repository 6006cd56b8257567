"""What a run leaves behind in rows: its requests, and its seconds."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from benchmarks.loadgen import records
from benchmarks.models.runs import Run


def _choices(values: type[records.Phase]) -> list[tuple[str, str]]:
    return [(value.value, value.value) for value in values]


class RequestRecordQuerySet(models.QuerySet["RequestRecord"]):
    def with_times(self) -> "RequestRecordQuerySet":
        """With `ttft` and `e2el` in seconds, and without the chunks. What was not streamed came when it was done."""
        end = Coalesce("last_chunk", "done")
        return self.annotate(ttft=F("first_chunk") - F("sent"), e2el=end - F("sent")).defer("chunks")


class RequestRecord(models.Model):
    """The facts of `benchmarks.loadgen.records.RequestRecord`. Times are seconds since the run's start."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="records")
    index = models.IntegerField(help_text="Negative for a warm-up.")
    worker = models.PositiveSmallIntegerField(default=0)
    user = models.PositiveIntegerField(null=True)
    session = models.CharField(max_length=200, null=True)  # noqa: DJ001  (None and "" differ in the record)
    turn = models.PositiveIntegerField(default=0)
    phase = models.CharField(max_length=10, choices=_choices(records.Phase))
    intended = models.FloatField(null=True)
    sent = models.FloatField(null=True)
    headers = models.FloatField(null=True)
    first_chunk = models.FloatField(null=True)
    last_chunk = models.FloatField(null=True)
    done = models.FloatField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    prompt_tokens_source = models.CharField(max_length=10, blank=True)
    output_tokens = models.PositiveIntegerField(null=True)
    output_tokens_source = models.CharField(max_length=10, blank=True)
    reasoning_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    expected_output_tokens = models.PositiveIntegerField(null=True)
    finish_reason = models.CharField(max_length=100, null=True)  # noqa: DJ001
    http_status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=30, blank=True)
    error_text = models.TextField(blank=True)
    bytes_in = models.PositiveBigIntegerField(default=0)
    connection_reused = models.BooleanField(null=True)
    text = models.TextField(null=True)  # noqa: DJ001
    chunks = models.BinaryField(help_text="The chunks, as benchmarks.storage packs them.")

    objects = RequestRecordQuerySet.as_manager()

    class Meta:
        ordering = ["run", "index", "pk"]
        indexes = [
            models.Index(fields=["run", "index"], name="request_run_index"),
            models.Index(fields=["run", "error"], name="request_failed", condition=~Q(error="")),
        ]

    def __str__(self) -> str:
        return f"request {self.index} of {self.run_id}"


class TimeBucket(models.Model):
    """One second of a run, as `benchmarks.loadgen.metrics.time_buckets` counts it."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="buckets")
    second = models.IntegerField(help_text="Since the run's start; negative in a warm-up ahead of it.")
    sent = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    tokens = models.FloatField(default=0, help_text="A chunk of unknown length counts as its share of the answer.")
    in_flight = models.FloatField(default=0)
    ttft_p50_ms = models.FloatField(null=True)
    ttft_p99_ms = models.FloatField(null=True)

    class Meta:
        ordering = ["run", "second"]
        constraints = [models.UniqueConstraint(fields=["run", "second"], name="bucket_second_once")]

    def __str__(self) -> str:
        return f"second {self.second} of {self.run_id}"
