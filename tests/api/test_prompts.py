import pytest

from inference.api.edge.errors import InvalidRequest
from inference.api.generating.prompts import Message, clean, content_text, render_chat, think_style


def text(messages, *, think_type=None, think=None, enable_think=None, **more) -> str:
    style = think_style(think_type, think, enable_think)
    return render_chat([Message(*message) for message in messages], style=style, **more).text


def test_one_user_message_is_answered_without_thinking():
    assert text([("user", "Hi")], enable_think=False) == "User: Hi\n\nAssistant: <think>\n</think>\n"


def test_enable_think_leaves_the_tag_open():
    assert text([("user", "Hi")], enable_think=True) == "User: Hi\n\nAssistant: <think"


def test_system_texts_are_gathered_in_front():
    messages = [("user", "a"), ("system", "one"), ("assistant", "b"), ("developer", "two"), ("user", "c")]
    assert text(messages, system="top").startswith(
        "System: top\none\ntwo\n\nUser: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"
    )


def test_a_missing_role_is_the_user_and_other_roles_and_empty_turns_are_left_out():
    messages = [(None, "a"), ("function", "f"), ("critic", "c"), ("assistant", " \n"), ("user", "b")]
    assert text(messages, think_type="none") == "User: a\n\nUser: b\n\nAssistant:"


def test_contents_follow_as_one_more_user_turn():
    assert text([("user", "a")], appended_user="b", think_type="none") == "User: a\n\nUser: b\n\nAssistant:"


def test_a_turn_never_holds_a_blank_line():
    assert clean(" a \r\n\r\n\tb\rc\n \n") == "a\nb\nc"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ""),
        ("x", "x"),
        ([{"type": "text", "text": "a"}, "b", {"type": "image_url", "image_url": {}}, {"type": "text"}, 3], "ab"),
    ],
)
def test_text_parts_are_joined_and_other_parts_left_out(content, expected):
    assert content_text(content) == expected


@pytest.mark.parametrize(
    ("switches", "end"),
    [
        ({"think_type": "fast"}, "User: q\n\nAssistant: <think>\n</think"),
        ({"think_type": "free", "think": False}, "User: q\n\nAssistant: <think"),
        ({"think_type": "preferChinese"}, "User: q\n\nAssistant: <think>嗯"),
        ({"think_type": "en"}, "User: q (think)\n\nAssistant: <think"),
        ({"think_type": "en_short"}, "User: q (think a bit)\n\nAssistant: <think"),
        ({"think_type": "enLong"}, "User: q (think a lot)\n\nAssistant: <think"),
        ({"think": True, "enable_think": False}, "User: q\n\nAssistant: <think"),
        ({"think_type": "unheard-of"}, "User: q\n\nAssistant: <think>\n</think"),
        ({"think_type": "unheard-of", "enable_think": True}, "User: q\n\nAssistant: <think"),
        ({"think_type": "unheard-of", "enable_think": False}, "User: q\n\nAssistant: <think>\n</think"),
        ({"think_type": "unheard-of", "think": False, "enable_think": True}, "User: q\n\nAssistant: <think>\n</think"),
    ],
)
def test_think_types(switches, end):
    assert text([("user", "q")], **switches) == end


def test_forced_reasoning_bans_the_end_of_the_tag():
    for style in (think_style("free", None, None), think_style("unheard-of", None, True)):
        bans = render_chat([Message("user", "q")], style=style).bans
        assert sorted(bans) == [(1, 111), (1, 754), (2, 111), (2, 754)]
    assert render_chat([Message("user", "q")], style=think_style(None, None, True)).bans == []


@pytest.mark.parametrize("messages", [[], [("assistant", "a")], [("user", " \n ")]])
def test_a_chat_needs_system_or_user_text(messages):
    with pytest.raises(InvalidRequest, match=r"^messages: expected some system or user text"):
        text(messages)
