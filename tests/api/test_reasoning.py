"""Thoughts apart from the answer."""

import re

import pytest

from inference.api.generating.reasoning import ReasoningSplitter, Thinking
from inference.api.generating.structured import grammar_text
from inference.grammars import GrammarCompiler
from inference.text.tokenizer import get_tokenizer

PATH = "/v1/chat/completions"
THINK = {"messages": [{"role": "user", "content": "Hi"}], "enable_think": True, "max_tokens": 12, "seed": 2}


def test_the_random_model_does_nothing_but_think(sdk):
    body = {"model": "rwkv7", "messages": THINK["messages"], "max_tokens": 12, "seed": 2}
    reply = sdk.chat.completions.create(extra_body={"enable_think": True}, **body)
    message = reply.choices[0].message
    assert message.content == ""
    assert message.reasoning_content
    assert reply.usage.completion_tokens_details.reasoning_tokens == 12
    by_effort = sdk.chat.completions.create(reasoning_effort="low", **body)
    assert by_effort.choices[0].message.reasoning_content == message.reasoning_content


def test_a_stream_of_thoughts(api):
    whole = api.post(PATH, THINK).reply["choices"][0]["message"]["reasoning_content"]
    frames = api.post(PATH, THINK | {"stream": True, "stream_options": {"include_usage": True}}).frames
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole
    assert not any(delta.get("content") for delta in deltas)
    assert frames[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}


def test_thoughts_stay_in_the_content_where_the_client_wants_them(api):
    message = api.post(PATH, THINK | {"separate_reasoning": False}).reply["choices"][0]["message"]
    assert message["content"]
    assert "reasoning_content" not in message


def test_a_chat_that_does_not_think_says_nothing_about_it(api):
    reply = api.post(PATH, THINK | {"enable_think": False, "reasoning_effort": "high"}).reply
    assert "reasoning_content" not in reply["choices"][0]["message"]
    assert "completion_tokens_details" not in reply["usage"]


def test_every_token_has_its_logprobs_also_while_text_is_held_back(api):
    frames = api.post(PATH, THINK | {"stream": True, "logprobs": True}).frames
    entries = [choice["logprobs"]["content"] for frame in frames for choice in frame["choices"] if choice["logprobs"]]
    assert sum(len(entry) for entry in entries) == 12


def test_the_rest_of_a_closing_tag_is_no_content(api):
    """`fast` ends the prompt within `</think>`."""
    body = {"messages": THINK["messages"], "think_type": "fast", "guided_regex": "[ab]{6}"}
    message = api.post(PATH, body).reply["choices"][0]["message"]
    assert re.fullmatch("[ab]{6}", message["content"])


def split(thinking: Thinking, text: str, size: int) -> tuple[str, str, int]:
    splitter = ReasoningSplitter(thinking)
    tokens = get_tokenizer().encode(text)
    thoughts = answer = ""
    for at in range(0, len(tokens), size):
        piece = tokens[at : at + size]
        more = splitter.push(get_tokenizer().decode(piece), piece)
        thoughts, answer = thoughts + more[0], answer + more[1]
    return thoughts + splitter.finish(), answer, splitter.tokens


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("thinking", "text", "thoughts", "answer"),
    [
        (Thinking.BEGINNING, ">\nHm, a < b.\n</think>\n\nYes.\n", "Hm, a < b.", "Yes.\n"),
        (Thinking.BEGINNING, ">Hm </th", "Hm </th", ""),
        (Thinking.BEGINNING, ">\n</think>", "", ""),
        (Thinking.BEGUN, "嗯 > x</think>a</think>b", "嗯 > x", "a</think>b"),
        (Thinking.ENDING, ">\n\nYes </think>", "", "Yes </think>"),
        (Thinking.ENDING, "Yes", "", "Yes"),
        (Thinking.NONE, "> Yes", "", "> Yes"),
    ],
)
def test_where_thoughts_end(thinking, text, thoughts, answer, size):
    found = split(thinking, text, size)
    assert found[:2] == (thoughts, answer)
    assert found[2] == split(thinking, text, 1)[2]


def test_the_tokens_of_the_thoughts_are_counted_up_to_the_tag():
    thoughts = ">\nHm.\n</think>"
    assert split(Thinking.BEGINNING, thoughts + "\nYes", 100)[2] == len(get_tokenizer().encode(thoughts))
    assert split(Thinking.NONE, "Yes", 100)[2] == 0


@pytest.mark.parametrize(
    ("thinking", "text"),
    [
        (Thinking.NONE, "ab"),
        (Thinking.ENDING, ">\n\nab"),
        (Thinking.BEGINNING, ">\nIs it {?\n</think>\nab"),
        (Thinking.BEGUN, "嗯</think>ab"),
    ],
)
def test_a_constraint_holds_for_the_answer_alone(thinking, text):
    tokenizer = get_tokenizer()
    matcher = GrammarCompiler(lambda: tokenizer.table).compile(grammar_text("/[ab]{2}/", thinking))
    assert matcher.consume_tokens(tokenizer.encode(text)), matcher.get_error()
    assert matcher.is_stopped()
