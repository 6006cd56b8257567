"""/state/chat/completions: turns of a session."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from inference.bus.messages import END_OF_TEXT
from inference.text.tokenizer import get_tokenizer
from tests.api.turns import BRANCH_PATH, GREEDY, PATH, completed, continued, listed, say, text_of
from tests.service_tests.conversations import logged_turns


def test_turns_of_a_session_read_like_one_long_prompt(api, session):
    log = ""
    for prompt in ("One", "Two", "\n\nThree"):
        text = prompt if not log or prompt.startswith("\n\n") else "\n\n" + prompt
        expected = continued(api, log + text)
        assert text_of(say(api, session, prompt)) == expected
        log += text + expected


def test_without_a_separator_the_prompt_follows_verbatim(api, session):
    first = text_of(say(api, session, "One"))
    assert text_of(say(api, session, "Two", turn_separator="")) == continued(api, "One" + first + "Two")


def test_without_a_session_nothing_is_kept(api):
    before = api.get("/state/status").reply["total_sessions"]
    assert text_of(say(api, None, "One")) == continued(api, "One")
    assert api.get("/state/status").reply["total_sessions"] == before


def test_a_reply_and_its_stream(api, session):
    whole = say(api, session, "One").reply
    assert (whole["id"], whole["object"], whole["model"]) == ("rwkv7-batch", "chat.completion", "rwkv7")
    frames = say(api, f"{session} streamed", "One", stream=True).frames
    text = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert frames[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert text_of(say(api, session, "Two")) == text_of(say(api, f"{session} streamed", "Two"))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stop_string_cut_off_is_not_part_of_the_session(api, session, stream):
    plain = continued(api, "One", max_tokens=30)
    stop = plain[5:7]
    visible = plain[: plain.index(stop)]
    cut = say(api, session, "One", max_tokens=30, stop_tokens=[stop], stream=stream)
    assert cut.status == 200
    assert text_of(say(api, session, "Two")) == continued(api, f"One{visible}\n\nTwo")


def test_two_sessions_share_nothing(api, session):
    text_of(say(api, session, "One"))
    assert text_of(say(api, f"{session} other", "Two")) == continued(api, "Two")


def test_concurrent_turns_of_one_session_come_one_after_another(api, service, session):
    prompts = [f"Writer {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        replies = dict(zip(prompts, pool.map(lambda prompt: text_of(say(api, session, prompt)), prompts), strict=True))
    logged = logged_turns(service, session)
    assert dict(logged) == replies
    assert len(logged) == 8
    for prompt, reply in logged:
        assert text_of(say(api, f"{session} again", prompt)) == reply


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"contents": ["a", "b"]}, "Request must contain exactly one prompt"),
        ({"contents": []}, "Request must contain exactly one prompt"),
        ({"session_id": "x" * 201}, "session_id: expected a string of length <= 200"),
        ({"session_id": 5}, "session_id: expected a string or null, got an integer"),
    ],
)
def test_bad_turns_are_refused(api, body, message):
    answer = api.post(PATH, {"contents": ["a"], "session_id": "bad", **GREEDY} | body)
    assert (answer.status, answer.json) == (400, {"error": message})
    assert not listed(api, "bad")


def test_an_empty_prompt_continues_a_session_behind_the_end_of_a_text(api, session):
    first = text_of(say(api, session, "One"))
    second = text_of(say(api, session, ""))
    history = [*get_tokenizer().encode(f"One{first}"), END_OF_TEXT]
    assert second == completed(api, history)
    history += get_tokenizer().encode(f"{second}\n\nTwo")
    assert text_of(say(api, session, "Two")) == completed(api, history)


# -- the header ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X_RWKV_Session_Id", "X_Session_Id"])
def test_a_session_may_be_named_in_a_header(api, session, name):
    header = {name: session}
    first = text_of(api.post(PATH, {"contents": ["One"], **GREEDY}, **header))
    assert text_of(api.post(PATH, {"contents": ["Two"], **GREEDY}, **header)) == continued(api, f"One{first}\n\nTwo")
    assert [item["session_id"] for item in listed(api, session)] == [session]


@pytest.mark.parametrize("name", ["X_RWKV_Session_Id", "X_Session_Id"])
def test_the_conversation_of_a_branch_may_be_named_in_a_header(api, session, name):
    header = {name: session}
    body = {"contents": ["One"], "dialogue_idx": 0, **GREEDY}
    assert api.post(BRANCH_PATH, body, **header).reply["dialogue_idx"] == 1
    stream = api.post(BRANCH_PATH, body | {"stream": True}, **header).frames
    assert stream[-1]["session_id"] == f"{session}:2"
    deleted = api.post("/state/delete", {"delete_prefix": True}, **header)
    assert deleted.reply["message"] == f"Session {session} deleted successfully"
    assert not listed(api, session)


@pytest.mark.parametrize("path", [PATH, BRANCH_PATH, "/state/delete"])
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"X_RWKV_Session_Id": "other"}, "session_id: the body and X-RWKV-Session-Id differ"),
        ({"X_Session_Id": "other"}, "session_id: the body and X-Session-Id differ"),
        ({"X_RWKV_Session_Id": "x" * 201}, "session_id: the body and X-RWKV-Session-Id differ"),
    ],
)
def test_a_header_that_differs_from_the_body_is_refused(api, session, path, header, message):
    answer = api.post(path, {"contents": ["a"], "session_id": session, "dialogue_idx": 0, **GREEDY}, **header)
    assert (answer.status, answer.json) == (400, {"error": message})
    assert not listed(api, session)


@pytest.mark.parametrize(("path", "longest"), [(PATH, 200), (BRANCH_PATH, 188), ("/state/delete", 200)])
def test_a_header_that_is_too_long_is_refused(api, path, longest):
    body = {"contents": ["a"], "dialogue_idx": 0, **GREEDY}
    answer = api.post(path, body, X_RWKV_Session_Id="x" * (longest + 1))
    assert (answer.status, answer.json) == (
        400,
        {"error": f"X-RWKV-Session-Id: expected at most {longest} characters"},
    )
