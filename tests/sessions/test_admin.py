"""Sessions in the admin."""

from http import HTTPStatus

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from inference.bus import keys
from inference.bus.messages import EngineStatus, History, ModelInfo
from inference.bus.server import EngineBus
from inference.text.tokenizer import get_tokenizer
from sessions import actions
from sessions.models import Session, Snapshot, SnapshotData, Turn
from sessions.states import StoredState, find_route, store_snapshots
from sessions.store import NewTurn, commit_branch, commit_turn, read_head
from tests.service import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

MODEL = ModelInfo(id="tiny", layers=1, width=64, vocab=65536, parameters=1, fingerprint="f" * 64)
LIST = "/admin/rwkv_sessions/session/"


def say(key: str, prompt: str, reply: str) -> Session:
    encode = get_tokenizer().encode
    turn = NewTurn(prompt=encode(prompt), reply=encode(reply), sampling={"seed": 1}, finish_reason="stop", duration=0.5)
    history = commit_turn(read_head("me", key, MODEL), turn)
    state = StoredState(
        digest=history.digest, tokens=history.tokens, pending=[], dtype="float32/float32", data=b"s" * 1000
    )
    store_snapshots([state], fingerprint=MODEL.fingerprint)
    return Session.objects.of("me", key)


def page(session: Session, name: str) -> str:
    return reverse(f"admin:rwkv_sessions_session_{name}", args=[session.pk])


@pytest.fixture
def staff(client):
    """A client that may see sessions, and nothing else."""
    user = User.objects.create_user("sam", password="sam", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_session", content_type__app_label="rwkv_sessions"))
    client.force_login(user)
    return client


def test_the_list_shows_what_a_session_takes_and_finds_it(admin_client):
    say("first", "Hello", " world")
    say("second", "Hello", " world")
    text = admin_client.get(LIST, {"q": "first"}).text
    assert "first" in text
    assert "second" not in text
    assert "1000\xa0bytes, turn 1" in text
    assert "database" in text


def test_the_list_takes_as_many_queries_for_many_sessions_as_for_one(admin_client, django_assert_max_num_queries):
    for number in range(30):
        say(f"session {number}", "Hello", " world")
    with django_assert_max_num_queries(12) as queries:
        assert admin_client.get(LIST).status_code == HTTPStatus.OK
    assert not any("blob" in query["sql"] or "prompt_ids" in query["sql"] for query in queries)


def test_a_transcript_needs_its_own_permission(admin_client, staff):
    session = say("first", "Hello <b>", " world")
    for name in ("transcript", "export"):
        assert staff.get(page(session, name)).status_code == HTTPStatus.FORBIDDEN
    assert "Transcript" not in staff.get(page(session, "change")).text


def test_a_transcript_shows_every_turn_as_text(admin_client):
    say("first", "Hello <b>", " world")
    session = say("first", "\n\nAgain", " and again")
    text = admin_client.get(page(session, "transcript")).text
    assert "Hello &lt;b&gt;" in text
    assert " and again" in text
    assert page(session, "export") in admin_client.get(page(session, "change")).text


def test_an_export_is_json(admin_client):
    session = say("a/b c", "Hello", " world")
    answer = admin_client.get(page(session, "export"))
    assert answer["Content-Disposition"] == 'attachment; filename="a_b_c.json"'
    (turn,) = answer.json()["turns"]
    assert (turn["prompt"], turn["reply"], turn["sampling"]) == ("Hello", " world", {"seed": 1})


def test_a_fork_goes_its_own_way(admin_client):
    session = say("first", "Hello", " world")
    for name in ("fork", "fork"):
        admin_client.post(LIST, {"action": name, "_selected_action": [session.pk]})
    assert set(Session.objects.values_list("key", flat=True)) == {"first", "first fork 1", "first fork 2"}
    say("first fork 1", " More", " text")
    assert Session.objects.of("me", "first").turn_count == 1
    head = read_head("me", "first fork 1", MODEL)
    route = find_route(head.history, (), fingerprint=MODEL.fingerprint, dtype="float16/float16")
    assert get_tokenizer().decode(route.tokens) == "Hello world More text"
    fork = Session.objects.of("me", "first fork 1")
    assert "Hello" in admin_client.get(page(fork, "transcript")).text


def test_an_engine_is_told_to_load_the_states_that_are_saved(admin_client, redis_url):
    saved, stale = say("first", "Hello", " world"), say("second", "Hi", " there")
    Snapshot.objects.filter(session=stale).update(digest="0" * 32)
    body = {"action": "warm", "_selected_action": [saved.pk, stale.pk]}
    page = admin_client.post(LIST, body, follow=True)
    assert "Nothing is loaded: no engine has the model tiny loaded" in page.text
    status = EngineStatus(engine="e", state="ready", host="", pid=0, started=0.0, updated=0.0, model=MODEL)
    engine = EngineBus(redis_url, status=lambda: status, name="e")
    engine.start()
    engine.serve(MODEL.id)
    try:
        wait_until(actions.live_engines, 10, "the engine is alive")
        with redis.Redis.from_url(redis_url) as connection:
            wait_until(lambda: connection.exists(keys.own("e")), 10, "the engine reads")
        wanted: list[History] = []

        def is_told() -> bool:
            admin_client.post(LIST, body)
            wanted.extend(engine.wanted())
            return bool(wanted)

        wait_until(is_told, 10, "the engine is told")
    finally:
        engine.stop()
    assert {history.session for history in wanted} == {saved.pk}
    assert wanted[0] == read_head("me", "first", MODEL).history


def test_a_key_that_is_taken_cannot_be_forked_to():
    session = say("first", "Hello", " world")
    with pytest.raises(actions.CannotFork, match="there is a session first already"):
        actions.fork(session, "first")


def test_deleting_takes_everything_but_what_branches_need(admin_client):
    session = say("first", "Hello", " world")
    turn = NewTurn(prompt=[1], reply=[2], sampling={}, finish_reason="stop", duration=0.0)
    commit_branch(read_head("me", "first", MODEL), "branches", turn)
    for _ in range(2):
        admin_client.post(
            LIST, {"action": "delete_selected", "_selected_action": [session.pk], "post": "yes"}, follow=True
        )
    assert Session.objects.of("me", "first") is None
    assert Turn.objects.count() == 2
    branch = Session.objects.of("me", "branches:1")
    admin_client.post(LIST, {"action": "delete_selected", "_selected_action": [branch.pk], "post": "yes"})
    for model in (Session, Turn, Snapshot, SnapshotData):
        assert not model.objects.exists()
