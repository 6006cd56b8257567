"""Durable sessions: the log of their turns, which is the truth, and snapshots of states, which save time.

A session's state follows from its turns; a snapshot only spares feeding them again. A branch is a
session whose log begins with its parent's, up to one turn.
"""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

KEY_LENGTH = 200
DIGEST_LENGTH = 32  # hexadecimal
LAYOUT = 1  # of a snapshot's bytes: all of `shift`, then all of `wkv`, in C order, little-endian


class InitialState(models.Model):
    """A tuned state that prompts and sessions can begin with instead of zero. Its bytes are in a table of their own."""

    key = models.CharField(max_length=KEY_LENGTH, unique=True, help_text="The state_id of requests.")
    owner = models.CharField(max_length=100, help_text="The caller who may use it.")
    filename = models.CharField(max_length=255)
    model = models.CharField(max_length=200)
    model_fingerprint = models.CharField(max_length=64)
    tensor_count = models.PositiveIntegerField()
    pending_ids = models.BinaryField(default=bytes, help_text="Token ids that it has not been fed yet.")
    checksum = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField(help_text="Bytes, of the file that was sent.")
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = "tuned state"
        ordering = ["-created", "-pk"]
        indexes = [models.Index(fields=["owner", "-created"], name="initial_state_owner")]

    def __str__(self) -> str:
        return self.key


class InitialStateData(models.Model):
    """`shift`, then `wkv`, as float32 in C order, little-endian: whatever types the file had."""

    state = models.OneToOneField(InitialState, models.CASCADE, related_name="data", primary_key=True)
    blob = models.BinaryField()

    def __str__(self) -> str:
        return f"bytes of initial state {self.pk}"


class SessionQuerySet(models.QuerySet["Session"]):
    def present(self) -> "SessionQuerySet":
        """Without those that were deleted and stay for the sake of their branches."""
        return self.filter(deleted_at=None)

    def of(self, owner: str, key: str) -> "Session | None":
        return self.present().filter(owner=owner, key=key).first()

    def family(self, owner: str, key: str) -> list["Session"]:
        """The session of that key, and all whose keys begin with the key and a colon."""
        begin = f"{key}:"
        # SQLite's LIKE takes "a" for "A", so the database only narrows the choice.
        found = self.present().filter(Q(key=key) | Q(key__startswith=begin), owner=owner)
        return [session for session in found if session.key == key or session.key.startswith(begin)]


class Session(models.Model):
    key = models.CharField(max_length=KEY_LENGTH, help_text="As the client named it.")
    owner = models.CharField(max_length=100, help_text="The caller who may use it.")
    model = models.CharField(max_length=200)
    model_fingerprint = models.CharField(max_length=64)
    start = models.ForeignKey(
        InitialState, models.PROTECT, null=True, blank=True, related_name="sessions", help_text="What it began with."
    )
    digest = models.CharField(max_length=DIGEST_LENGTH, help_text="The name of its whole history.")
    token_count = models.PositiveBigIntegerField(default=0)
    turn_count = models.PositiveIntegerField(default=0, help_text="Those before a branch included.")
    parent = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="branches")
    parent_turn = models.PositiveIntegerField(null=True, blank=True, help_text="The last turn shared with the parent.")
    conversation = models.CharField(max_length=KEY_LENGTH, blank=True, help_text="What its branches have in common.")
    branch = models.PositiveIntegerField(null=True, blank=True, help_text="Its number within the conversation.")
    created = models.DateTimeField(default=timezone.now)
    last_used = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = SessionQuerySet.as_manager()

    class Meta:
        ordering = ["-last_used", "-pk"]
        permissions = [("view_transcript", "Can read the text of sessions")]
        indexes = [
            models.Index(fields=["digest"], name="session_digest"),
            models.Index(fields=["-last_used", "-id"], name="session_last_used"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["owner", "key"], condition=Q(deleted_at=None), name="session_key"),
            models.UniqueConstraint(
                fields=["owner", "conversation", "branch"], condition=Q(branch__isnull=False), name="session_branch"
            ),
            models.CheckConstraint(
                condition=Q(parent=None, parent_turn=None)
                | Q(parent__isnull=False, parent_turn__gte=1, turn_count__gte=F("parent_turn")),
                name="session_parent",
            ),
            models.CheckConstraint(condition=Q(turn_count__gte=1, token_count__gte=1), name="session_has_turns"),
        ]

    def __str__(self) -> str:
        return self.key


class Conversation(models.Model):
    """Counts the branches of a conversation, so that no number is given out twice, whatever is deleted."""

    owner = models.CharField(max_length=100)
    key = models.CharField(max_length=KEY_LENGTH)
    last_branch = models.PositiveIntegerField(default=0, help_text="The highest number that was given out.")
    last_used = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="conversation_key")]

    def __str__(self) -> str:
        return self.key


class Turn(models.Model):
    """One prompt and its reply, as token ids (uint32, little-endian)."""

    session = models.ForeignKey(Session, models.CASCADE, related_name="turns")
    number = models.PositiveIntegerField(help_text="From 1; a branch goes on counting where its parent's log ends.")
    prompt_ids = models.BinaryField()
    reply_ids = models.BinaryField()
    sampling = models.JSONField(default=dict)
    finish_reason = models.CharField(max_length=20)
    digest = models.CharField(max_length=DIGEST_LENGTH, help_text="The name of the history up to here.")
    created = models.DateTimeField(default=timezone.now)
    duration = models.FloatField(help_text="Seconds from the request to its last token.")

    class Meta:
        ordering = ["session", "number"]
        constraints = [
            models.UniqueConstraint(fields=["session", "number"], name="turn_number"),
            models.CheckConstraint(condition=Q(number__gte=1), name="turn_number_from_one"),
        ]

    def __str__(self) -> str:
        return f"turn {self.number} of {self.session_id}"


class LevelSample(models.Model):
    """Where the states of sessions were at one time, for the charts. Counters are sums over the engines."""

    created = models.DateTimeField(default=timezone.now, db_index=True)
    device_states = models.PositiveIntegerField()
    host_states = models.PositiveIntegerField()
    sessions = models.PositiveIntegerField()
    snapshot_bytes = models.PositiveBigIntegerField()
    state_hits = models.PositiveBigIntegerField(help_text="Since the engines started.")
    state_loads = models.PositiveBigIntegerField()
    cached_tokens = models.PositiveBigIntegerField()
    prompt_tokens = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["created"]

    def __str__(self) -> str:
        return f"levels at {self.created}"


class Snapshot(models.Model):
    """A state of a session, after one of its turns. The bytes are in a table of their own."""

    session = models.OneToOneField(Session, models.CASCADE, related_name="snapshot")
    turn = models.PositiveIntegerField()
    digest = models.CharField(max_length=DIGEST_LENGTH)
    token_count = models.PositiveBigIntegerField(help_text="Tokens of the history up to that turn.")
    pending_ids = models.BinaryField(default=bytes, help_text="The last of them, which the state was not fed.")
    model_fingerprint = models.CharField(max_length=64)
    dtype = models.CharField(max_length=40)
    layout = models.PositiveSmallIntegerField(default=LAYOUT)
    checksum = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField(help_text="Bytes.")
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(turn__gte=1), name="snapshot_turn_from_one")]

    def __str__(self) -> str:
        return f"state after turn {self.turn} of {self.session_id}"


class SnapshotData(models.Model):
    snapshot = models.OneToOneField(Snapshot, models.CASCADE, related_name="data", primary_key=True)
    blob = models.BinaryField()

    def __str__(self) -> str:
        return f"bytes of snapshot {self.pk}"
