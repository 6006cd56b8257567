"""Sessions to files and back, tuned states, and the charts, in the admin."""

import io
import json
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import pytest
import redis
import torch
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from inference.bus import keys
from inference.bus.messages import EngineStatus, ModelInfo
from sessions.models import InitialState, LevelSample, Session, Snapshot
from sessions.samples import read_charts
from sessions.states import StoredState, store_snapshots
from sessions.store import NewTurn, commit_branch, commit_turn, read_head
from sessions.tasks import sample_levels
from sessions.transfer import CannotTransfer, as_json, import_session

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

MODEL = ModelInfo(id="tiny", layers=2, width=128, vocab=65536, parameters=1, fingerprint="f" * 64)
LIST = "/admin/rwkv_sessions/session/"
STATES = "/admin/rwkv_sessions/initialstate/"


@pytest.fixture
def engine(redis_url: str) -> Iterator[None]:
    """An engine that has the model loaded, as far as the admin sees."""
    status = EngineStatus(engine="e", state="ready", host="", pid=0, started=0.0, updated=0.0, model=MODEL)
    status.device_states, status.state_hits, status.state_loads = [b"1", b"2"], 30, 10
    with redis.Redis.from_url(redis_url) as connection:
        connection.sadd(keys.ENGINES, "e")
        connection.set(keys.engine("e"), msgspec.msgpack.encode(status))
        yield
        connection.delete(keys.engine("e"))
        connection.srem(keys.ENGINES, "e")


def say(key: str, *turns: tuple[list[int], list[int]], owner: str = "me") -> Session:
    for prompt, reply in turns:
        turn = NewTurn(prompt=prompt, reply=reply, sampling={"seed": 1}, finish_reason="stop", duration=0.5)
        commit_turn(read_head(owner, key, MODEL), turn)
    return Session.objects.of(owner, key)


def keep_snapshot(session: Session, data: bytes, pending: list[int]) -> None:
    state = StoredState(
        digest=bytes.fromhex(session.digest),
        tokens=session.token_count,
        pending=pending,
        dtype="float16/float32",
        data=data,
    )
    store_snapshots([state], fingerprint=MODEL.fingerprint)


# -- sessions as JSON ---------------------------------------------------------------------------


def test_an_exported_session_is_imported_token_for_token(admin_client):
    session = say("first", ([10, 11], [12]), ([13], [14, 15]))
    file = SimpleUploadedFile("first.json", admin_client.get(f"{LIST}{session.pk}/export/").content)
    answer = admin_client.post(f"{LIST}import/", {"file": file, "owner": "me", "key": "second"})
    made = Session.objects.of("me", "second")
    assert answer.url == f"{LIST}{made.pk}/change/"
    assert (made.digest, made.token_count, made.turn_count) == (session.digest, 6, 2)
    assert list(made.turns.values_list("sampling", "finish_reason", "duration")) == [({"seed": 1}, "stop", 0.5)] * 2


def test_a_branch_is_imported_as_a_session_of_its_own():
    say("trunk", ([1], [2]))
    turn = NewTurn(prompt=[3], reply=[4], sampling={}, finish_reason="stop", duration=0.0)
    commit_branch(read_head("me", "trunk", MODEL), "tree", turn)
    branch = Session.objects.of("me", "tree:1")
    made = import_session("me", "alone", as_json(branch).encode())
    assert (made.digest, made.parent, made.turns.count()) == (branch.digest, None, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "this is no exported session: Input data was truncated"),
        ({"turns": []}, r"this is no exported session: .*\$.turns"),
        ({"turns": [{"prompt_ids": [70_000], "reply_ids": [], "finish_reason": "stop"}]}, "prompt_ids"),
        ({"start": "gone"}, "start: me has no state gone of this model: import it first"),
        ({}, "there is a session first already"),
    ],
)
def test_a_file_that_is_no_session_leaves_nothing_behind(change, message):
    exported = as_json(say("first", ([1], [2])))
    content = "{" if change is None else json.dumps(json.loads(exported) | change)
    with pytest.raises(CannotTransfer, match=message):
        import_session("me", "", content.encode())
    assert Session.objects.count() == 1


def test_the_import_page_says_what_is_wrong(admin_client):
    assert "session_id" in admin_client.get(f"{LIST}import/").text
    file = SimpleUploadedFile("first.json", b"{}")
    answer = admin_client.post(f"{LIST}import/", {"file": file, "owner": "me"})
    assert "this is no exported session" in answer.text


# -- states as .pth -----------------------------------------------------------------------------


def test_an_exported_state_is_what_was_saved_and_can_be_added_again(admin_client, engine):
    session = say("first", ([10, 11], [12]))
    shift, wkv = torch.randn(2, 2, 128).half(), torch.randn(2, 2, 64, 64)
    keep_snapshot(session, shift.numpy().tobytes() + wkv.numpy().tobytes(), pending=[12])
    answer = admin_client.get(f"{LIST}{session.pk}/state/")
    assert answer["Content-Disposition"] == 'attachment; filename="first.pth"'
    read = torch.load(io.BytesIO(answer.content), weights_only=True)
    assert torch.equal(read["shift"], shift)
    assert torch.equal(read["wkv"], wkv)
    assert read["pending_ids"].tolist() == [12]
    file = SimpleUploadedFile("first.pth", answer.content)
    assert admin_client.post(f"{STATES}add/", {"owner": "you", "file": file}).status_code == 302
    state = InitialState.objects.get()
    assert (state.owner, state.filename, state.model_fingerprint) == ("you", "first.pth", MODEL.fingerprint)
    assert state.key in admin_client.get(STATES).text
    assert admin_client.get(f"{STATES}{state.pk}/change/").status_code == 200


def test_a_state_that_cannot_be_exported_is_explained(admin_client, redis_url):
    session = say("first", ([10, 11], [12]))
    page = admin_client.get(f"{LIST}{session.pk}/state/", follow=True)
    assert "no engine has the model tiny loaded" in page.text


@pytest.mark.usefixtures("engine")
def test_a_session_without_a_snapshot_has_no_state_to_export(admin_client):
    session = say("first", ([10, 11], [12]))
    page = admin_client.get(f"{LIST}{session.pk}/state/", follow=True)
    assert "first has no saved state yet" in page.text
    keep_snapshot(session, b"state", pending=[])
    Snapshot.objects.update(checksum="0" * 64)
    page = admin_client.get(f"{LIST}{session.pk}/state/", follow=True)
    assert "the saved state of first is damaged" in page.text


@pytest.mark.usefixtures("engine")
def test_a_bad_state_is_refused_in_the_form(admin_client):
    file = SimpleUploadedFile("bad.pth", b"bad")
    page = admin_client.post(f"{STATES}add/", {"owner": "you", "file": file})
    assert "not a .pth archive" in page.text
    assert not InitialState.objects.exists()


# -- charts -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
def test_a_sample_says_where_the_states_are_and_old_ones_go():
    say("first", ([1], [2]))
    sample_levels()
    LevelSample.objects.update(created=timezone.now() - timedelta(days=8))
    sample_levels()
    sample = LevelSample.objects.get()
    assert (sample.device_states, sample.host_states, sample.sessions, sample.state_hits) == (2, 0, 1, 30)


def sample(hours: float, **values: int) -> None:
    counts = ["device_states", "host_states", "sessions", "snapshot_bytes"]
    counts += ["state_hits", "state_loads", "cached_tokens", "prompt_tokens"]
    zero = dict.fromkeys(counts, 0)
    LevelSample.objects.create(created=NOW - timedelta(hours=hours), **zero | values)


NOW = timezone.now()


def test_charts_show_levels_and_the_share_of_hits_between_samples(admin_client):
    sample(3, state_hits=10, state_loads=10)
    sample(2, state_hits=19, state_loads=11, device_states=4, sessions=8)
    sample(1, state_hits=0, state_loads=0, device_states=2, sessions=8)
    states, rates, _sizes = read_charts(NOW)
    assert (states.top, [curve.last for curve in states.curves]) == ("8", ["2", "0", "8"])
    assert states.curves[0].path == "M660.0,80.0L690.0,120.0"
    assert [curve.last for curve in rates.curves] == ["90%", "–"]
    assert rates.curves[0].path == "M660.0,16.0", "an engine that started anew makes a gap"
    page = admin_client.get(f"{LIST}levels/").text
    assert 'class="curve-1" d="M6' in page
    assert "L1, on the device: 2" in " ".join(page.split())


def test_charts_without_samples_are_empty(admin_client):
    assert admin_client.get(f"{LIST}levels/").status_code == 200
