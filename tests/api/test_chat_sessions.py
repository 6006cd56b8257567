"""Chats that are sessions, and chats that begin alike."""

import pytest

from tests.api.turns import GREEDY, continued, text_of

CHATS = ["/v1/chat/completions", "/openai/v1/chat/completions"]
TAIL = "\n\nAssistant: <think>\n</think>\n"


def chat(api, path: str, session: str, *messages: tuple[str, str], headers: dict[str, str] | None = None, **more):
    sent = [{"role": role, "content": text} for role, text in messages]
    body = {"messages": sent, **GREEDY} | ({"session_id": session} if session else {}) | more
    return api.post(path, body, **(headers or {}))


@pytest.mark.parametrize("path", CHATS)
def test_only_the_new_messages_of_a_chat_are_rendered(api, session, path):
    first = text_of(chat(api, path, session, ("system", "Be brief"), ("user", "One")))
    log = f"System: Be brief\n\nUser: One{TAIL}{first}"
    assert first == continued(api, log.removesuffix(first))
    second = text_of(chat(api, path, session, ("user", "Two")))
    log += f"\n\nUser: Two{TAIL}"
    assert second == continued(api, log)
    whole = [("system", "Be brief"), ("user", "One"), ("assistant", first), ("user", "Two"), ("assistant", second)]
    third = text_of(chat(api, path, session, *whole, ("user", "Three")))
    assert third == continued(api, f"{log}{second}\n\nUser: Three{TAIL}")


def test_a_chat_may_be_named_in_a_header(api, session):
    header = {"X_RWKV_Session_Id": session}
    first = text_of(chat(api, CHATS[0], "", ("user", "One"), headers=header))
    second = text_of(chat(api, CHATS[0], "", ("user", "Two"), headers=header))
    assert second == continued(api, f"User: One{TAIL}{first}\n\nUser: Two{TAIL}")
    answer = chat(api, CHATS[0], "other", ("user", "Three"), headers=header)
    assert answer.status == 400
    assert "differ" in answer.json["error"]["message"]


def test_a_streamed_chat_is_a_turn_too(api, session):
    frames = chat(api, CHATS[0], session, ("user", "One"), stream=True).frames
    first = "".join(choice["delta"].get("content", "") for frame in frames for choice in frame["choices"])
    second = text_of(chat(api, CHATS[0], session, ("user", "Two")))
    assert second == continued(api, f"User: One{TAIL}{first}\n\nUser: Two{TAIL}")


@pytest.mark.parametrize(
    ("messages", "more", "message"),
    [
        ([("user", "a")], {"n": 2}, "n: expected 1 in a session"),
        ([("user", "a"), ("assistant", "b")], {}, "messages: expected a message behind those of the session"),
        ([("system", "a")], {}, "messages: expected a message behind those of the session"),
    ],
)
def test_bad_chats_in_a_session_are_refused(api, session, messages, more, message):
    chat(api, CHATS[0], session, ("user", "One"))
    answer = chat(api, CHATS[0], session, *messages, **more)
    assert (answer.status, answer.json["error"]["message"]) == (400, message)


def test_a_shared_prefix_is_found_and_changes_nothing(api, session):
    shared = " ".join(f"{session} word{number}" for number in range(200))

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
