"""/state/* and /multi_state/*: sessions over HTTP."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import redis

from inference.bus.messages import END_OF_TEXT
from inference.bus.status import read_engines
from inference.text.tokenizer import get_tokenizer
from tests.service import wait_until
from tests.service_tests.conversations import logged_turns

PATH = "/state/chat/completions"
BRANCH_PATH = "/multi_state/chat/completions"
# Whatever a random model says with these words has one tokenisation, so a text can stand for its tokens.
WORDS = [" cat", " dog", " house", " tree", " river", " stone", " cloud", " bird", " apple", " road", " ship", " light"]
GREEDY = {
    "temperature": 0,
    "max_tokens": 6,
    "stop_tokens": [],
    "ignore_eos": True,
    "logit_bias": {str(get_tokenizer().encode(word)[0]): 100 for word in WORDS},
}
numbers = count()


@pytest.fixture
def key() -> str:
    """A session id that no other test uses."""
    return f"session {next(numbers)}"


def say(api, key: str | None, text: str, path: str = PATH, **more):
    return api.post(path, {"contents": [text], **GREEDY} | ({"session_id": key} if key else {}) | more)


def text_of(answer) -> str:
    (choice,) = answer.reply["choices"]
    return choice["message"]["content"]


def continued(api, text: str, **more) -> str:
    """What the model says behind this text when it is sent as one prompt."""
    return text_of(api.post("/v1/chat/completions", {"contents": [text], **GREEDY} | more))


def completed(api, prompt: list[int]) -> str:
    """What the model says behind these tokens."""
    return api.post("/v1/completions", {"prompt": prompt, **GREEDY}).reply["choices"][0]["text"]


def branch(api, key: str, index: int, text: str, **more):
    return say(api, key, text, BRANCH_PATH, dialogue_idx=index, **more)


def listed(api, key: str) -> list[dict]:
    items = api.get("/state/status").reply["sessions"]
    return [item for item in items if item["session_id"] == key or item["session_id"].startswith(f"{key}:")]


# -- turns --------------------------------------------------------------------------------------


def test_turns_of_a_session_read_like_one_long_prompt(api, key):
    log = ""
    for prompt in ("One", "Two", "\n\nThree"):
        text = prompt if not log or prompt.startswith("\n\n") else "\n\n" + prompt
        expected = continued(api, log + text)
        assert text_of(say(api, key, prompt)) == expected
        log += text + expected


def test_without_a_separator_the_prompt_follows_verbatim(api, key):
    first = text_of(say(api, key, "One"))
    assert text_of(say(api, key, "Two", turn_separator="")) == continued(api, "One" + first + "Two")


def test_without_a_session_nothing_is_kept(api):
    before = api.get("/state/status").reply["total_sessions"]
    assert text_of(say(api, None, "One")) == continued(api, "One")
    assert api.get("/state/status").reply["total_sessions"] == before


def test_a_reply_and_its_stream(api, key):
    whole = say(api, key, "One").reply
    assert (whole["id"], whole["object"], whole["model"]) == ("rwkv7-batch", "chat.completion", "rwkv7")
    frames = say(api, f"{key} streamed", "One", stream=True).frames
    text = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert frames[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert text_of(say(api, key, "Two")) == text_of(say(api, f"{key} streamed", "Two"))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_stop_string_cut_off_is_not_part_of_the_session(api, key, stream):
    plain = continued(api, "One", max_tokens=30)
    stop = plain[5:7]
    visible = plain[: plain.index(stop)]
    cut = say(api, key, "One", max_tokens=30, stop_tokens=[stop], stream=stream)
    assert cut.status == 200
    assert text_of(say(api, key, "Two")) == continued(api, f"One{visible}\n\nTwo")


def test_two_sessions_share_nothing(api, key):
    text_of(say(api, key, "One"))
    assert text_of(say(api, f"{key} other", "Two")) == continued(api, "Two")


def test_concurrent_turns_of_one_session_come_one_after_another(api, service, key):
    prompts = [f"Writer {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        replies = dict(zip(prompts, pool.map(lambda prompt: text_of(say(api, key, prompt)), prompts), strict=True))
    logged = logged_turns(service, key)
    assert dict(logged) == replies
    assert len(logged) == 8
    for prompt, reply in logged:
        assert text_of(say(api, f"{key} again", prompt)) == reply


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


def test_an_empty_prompt_continues_a_session_behind_the_end_of_a_text(api, key):
    first = text_of(say(api, key, "One"))
    second = text_of(say(api, key, ""))
    history = [*get_tokenizer().encode(f"One{first}"), END_OF_TEXT]
    assert second == completed(api, history)
    history += get_tokenizer().encode(f"{second}\n\nTwo")
    assert text_of(say(api, key, "Two")) == completed(api, history)


# -- the header ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X_RWKV_Session_Id", "X_Session_Id"])
def test_a_session_may_be_named_in_a_header(api, key, name):
    header = {name: key}
    first = text_of(api.post(PATH, {"contents": ["One"], **GREEDY}, **header))
    assert text_of(api.post(PATH, {"contents": ["Two"], **GREEDY}, **header)) == continued(api, f"One{first}\n\nTwo")
    assert [item["session_id"] for item in listed(api, key)] == [key]


@pytest.mark.parametrize("name", ["X_RWKV_Session_Id", "X_Session_Id"])
def test_the_conversation_of_a_branch_may_be_named_in_a_header(api, key, name):
    header = {name: key}
    body = {"contents": ["One"], "dialogue_idx": 0, **GREEDY}
    assert api.post(BRANCH_PATH, body, **header).reply["dialogue_idx"] == 1
    stream = api.post(BRANCH_PATH, body | {"stream": True}, **header).frames
    assert stream[-1]["session_id"] == f"{key}:2"
    deleted = api.post("/state/delete", {"delete_prefix": True}, **header)
    assert deleted.reply["message"] == f"Session {key} deleted successfully"
    assert not listed(api, key)


@pytest.mark.parametrize("path", [PATH, BRANCH_PATH, "/state/delete"])
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"X_RWKV_Session_Id": "other"}, "session_id: the body and X-RWKV-Session-Id differ"),
        ({"X_Session_Id": "other"}, "session_id: the body and X-Session-Id differ"),
        ({"X_RWKV_Session_Id": "x" * 201}, "session_id: the body and X-RWKV-Session-Id differ"),
    ],
)
def test_a_header_that_differs_from_the_body_is_refused(api, key, path, header, message):
    answer = api.post(path, {"contents": ["a"], "session_id": key, "dialogue_idx": 0, **GREEDY}, **header)
    assert (answer.status, answer.json) == (400, {"error": message})
    assert not listed(api, key)


@pytest.mark.parametrize(("path", "longest"), [(PATH, 200), (BRANCH_PATH, 188), ("/state/delete", 200)])
def test_a_header_that_is_too_long_is_refused(api, path, longest):
    body = {"contents": ["a"], "dialogue_idx": 0, **GREEDY}
    answer = api.post(path, body, X_RWKV_Session_Id="x" * (longest + 1))
    assert (answer.status, answer.json) == (
        400,
        {"error": f"X-RWKV-Session-Id: expected at most {longest} characters"},
    )


# -- branches -----------------------------------------------------------------------------------


def test_branches_grow_from_any_branch_and_leave_it_as_it_is(api, key):
    root = branch(api, key, 0, "One").reply
    assert (root["id"], root["dialogue_idx"]) == ("rwkv7-multi-state", 1)
    first = root["choices"][0]["message"]["content"]
    for number, prompt in enumerate(("Left", "Right", "Left"), start=2):
        reply = branch(api, key, 1, prompt).reply
        assert reply["dialogue_idx"] == number
        assert reply["choices"][0]["message"]["content"] == continued(api, f"One{first}\n\n{prompt}")
    left = text_of(branch(api, key, 2, "On"))
    assert left == continued(api, f"One{first}\n\nLeft{continued(api, f'One{first}' + chr(10) * 2 + 'Left')}\n\nOn")
    again = branch(api, key, 0, "One").reply
    assert again["choices"][0]["message"]["content"] == first


def test_the_stream_of_a_branch_ends_with_its_number(api, key):
    *_, last, done, rest = branch(api, key, 0, "One", stream=True).body.split(b"\n\n")
    assert last == b'data: {"object":"multi_state.dialogue_idx","session_id":"%b:1","dialogue_idx":1}' % key.encode()
    assert (done, rest) == (b"data: [DONE]", b"")


def test_branches_made_at_once_get_different_numbers(api, key):
    branch(api, key, 0, "One")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: branch(api, key, 1, f"Branch {n}"), range(8)))
    assert sorted(answer.reply["dialogue_idx"] for answer in answers) == list(range(2, 10))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"session_id": "b"}, 400, "Missing dialogue_idx parameter"),
        ({"dialogue_idx": 0}, 400, "Missing session_id parameter"),
        ({"session_id": "b", "dialogue_idx": 7}, 404, "State not found for dialogue_idx=7"),
        ({"session_id": "b", "dialogue_idx": 0, "contents": []}, 400, "Request must contain exactly one prompt"),
    ],
)
def test_bad_branches_are_refused(api, body, status, message):
    answer = api.post(BRANCH_PATH, {"contents": ["a"], **GREEDY} | body)
    assert (answer.status, answer.json) == (status, {"error": message})


# -- the list -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_status_lists_sessions_with_their_levels(api, key, method):
    say(api, key, "One")
    wait_until(lambda: listed(api, key)[0]["cache_level"] == "L1 (VRAM)", 5, "the heartbeat tells of the state")
    reply = api.send(method, "/state/status", {} if method == "POST" else None).reply
    assert reply["status"] == "success"
    counts = reply["l1_cache_count"], reply["l2_cache_count"], reply["database_count"]
    assert reply["total_sessions"] == sum(counts) == len(reply["sessions"])
    (item,) = [item for item in reply["sessions"] if item["session_id"] == key]
    assert item == {
        "session_id": key,
        "cache_level": "L1 (VRAM)",
        "last_updated": "In Memory",
        "timestamp": item["timestamp"],
    }
    for other in reply["sessions"]:
        if other["cache_level"] == "Database (Disk)":
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", other["last_updated"])


def test_a_deleted_session_begins_anew(api, key):
    first = text_of(say(api, key, "One"))
    answer = api.post("/state/delete", {"session_id": key})
    assert answer.reply == {"status": "success", "message": f"Session {key} deleted successfully"}
    assert not listed(api, key)
    assert text_of(say(api, key, "One")) == first


def test_deleting_what_is_not_there(api, key):
    answer = api.post("/state/delete", {"session_id": key})
    message = f"Session {key} not found in database"
    assert (answer.status, answer.json) == (404, {"status": "not_found", "message": message})
    assert api.post("/state/delete", {"session_id": key, "delete_prefix": True}).status == 200
    answer = api.post("/state/delete", {})
    assert (answer.status, answer.json) == (400, {"error": "Missing session_id parameter"})


def test_a_prefix_deletes_all_branches(api, key):
    for index in (0, 1, 1):
        branch(api, key, index, "One")
    say(api, f"{key}x", "One")
    assert api.post("/state/delete", {"session_id": key, "delete_prefix": True}).status == 200
    assert not listed(api, key)
    assert listed(api, f"{key}x")


@pytest.mark.parametrize("with_prefix", [False, True])
def test_the_engines_forget_the_states_of_deleted_sessions(api, service, key, with_prefix):
    def in_memory(since: float = 0.0) -> set[bytes]:
        """By a heartbeat from `since` on."""
        with redis.Redis.from_url(service.redis_url) as connection:
            (engine,) = read_engines(connection)
            while engine.updated < since:
                (engine,) = read_engines(connection)
        return {*engine.device_states, *engine.host_states}

    before = in_memory(since=time.time())  # with those of tests that have just ended
    for number in range(3):
        say(api, f"{key}:{number}" if with_prefix else key, f"{key} {number}")
    heads = 3 if with_prefix else 1
    wait_until(
        lambda: [item["cache_level"].startswith("L") for item in listed(api, key)] == [True] * heads,
        10,
        "the heartbeat tells of the states",
    )
    made = in_memory() - before
    assert len(made) >= heads
    assert api.post("/state/delete", {"session_id": key, "delete_prefix": with_prefix}).status == 200
    wait_until(lambda: not in_memory() & made, 10, "the states are dropped")


def test_a_branch_outlives_its_deleted_parent(api, key):
    branch(api, key, 0, "One")
    expected = text_of(branch(api, key, 1, "Two"))
    child = text_of(branch(api, key, 2, "Three"))
    assert api.post("/state/delete", {"session_id": f"{key}:1"}).status == 200
    assert branch(api, key, 1, "Two").status == 404
    assert text_of(branch(api, key, 2, "Three")) == child
    assert expected


# -- chats that are sessions --------------------------------------------------------------------

CHATS = ["/v1/chat/completions", "/openai/v1/chat/completions"]
TAIL = "\n\nAssistant: <think>\n</think>\n"


def chat(api, path: str, key: str, *messages: tuple[str, str], headers: dict[str, str] | None = None, **more):
    listed = [{"role": role, "content": text} for role, text in messages]
    body = {"messages": listed, **GREEDY} | ({"session_id": key} if key else {}) | more
    return api.post(path, body, **(headers or {}))


@pytest.mark.parametrize("path", CHATS)
def test_only_the_new_messages_of_a_chat_are_rendered(api, key, path):
    first = text_of(chat(api, path, key, ("system", "Be brief"), ("user", "One")))
    log = f"System: Be brief\n\nUser: One{TAIL}{first}"
    assert first == continued(api, log.removesuffix(first))
    second = text_of(chat(api, path, key, ("user", "Two")))
    log += f"\n\nUser: Two{TAIL}"
    assert second == continued(api, log)
    whole = [("system", "Be brief"), ("user", "One"), ("assistant", first), ("user", "Two"), ("assistant", second)]
    third = text_of(chat(api, path, key, *whole, ("user", "Three")))
    assert third == continued(api, f"{log}{second}\n\nUser: Three{TAIL}")


def test_a_chat_may_be_named_in_a_header(api, key):
    header = {"X_RWKV_Session_Id": key}
    first = text_of(chat(api, CHATS[0], "", ("user", "One"), headers=header))
    second = text_of(chat(api, CHATS[0], "", ("user", "Two"), headers=header))
    assert second == continued(api, f"User: One{TAIL}{first}\n\nUser: Two{TAIL}")
    answer = chat(api, CHATS[0], "other", ("user", "Three"), headers=header)
    assert answer.status == 400
    assert "differ" in answer.json["error"]["message"]


def test_a_streamed_chat_is_a_turn_too(api, key):
    frames = chat(api, CHATS[0], key, ("user", "One"), stream=True).frames
    first = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    second = text_of(chat(api, CHATS[0], key, ("user", "Two")))
    assert second == continued(api, f"User: One{TAIL}{first}\n\nUser: Two{TAIL}")


@pytest.mark.parametrize(
    ("messages", "more", "message"),
    [
        ([("user", "a")], {"n": 2}, "n: expected 1 in a session"),
        ([("user", "a"), ("assistant", "b")], {}, "messages: expected a message behind those of the session"),
        ([("system", "a")], {}, "messages: expected a message behind those of the session"),
    ],
)
def test_bad_chats_in_a_session_are_refused(api, key, messages, more, message):
    chat(api, CHATS[0], key, ("user", "One"))
    answer = chat(api, CHATS[0], key, *messages, **more)
    assert (answer.status, answer.json["error"]["message"]) == (400, message)


# -- the prefix cache ---------------------------------------------------------------------------


def test_a_shared_prefix_is_found_and_changes_nothing(api, key):
    shared = " ".join(f"{key} word{number}" for number in range(200))

    def ask(ending: str, **more) -> tuple[str, int]:
        body = {"messages": [{"role": "user", "content": shared + ending}], **GREEDY} | more
        reply = api.post("/openai/v1/chat/completions", body).reply
        return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    plain = [ask(f" and {ending}", use_prefix_cache=False) for ending in ("dogs", "cats")]
    assert [cached for _, cached in plain] == [0, 0]
    assert ask(" and dogs") == plain[0]
    text, cached = ask(" and cats")
    assert text == plain[1][0]
    assert cached > 512
    assert cached % 256 == 0
