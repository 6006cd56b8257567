"""What evaluation tools and dashboards ask of vLLM: tokens, version, load and metrics."""

import jinja2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inference.api.generating.prompts import Message, render_chat, think_style
from inference.text.tokenizer import get_tokenizer

HI = [{"role": "user", "content": "Hi"}]


def test_text_to_tokens_and_back(api):
    text = "Hello, 世界 <|endoftext|> 😀\n"
    reply = api.post("/tokenize", {"prompt": text, "add_special_tokens": False}).reply
    assert reply["count"] == len(reply["tokens"])
    assert reply["tokens"].count(0) == 1
    assert reply["max_model_len"] == api.get("/v1/models").reply["data"][0]["max_model_len"]
    assert api.post("/detokenize", {"tokens": reply["tokens"]}).reply == {"prompt": text}
    named = api.post("/tokenize/", {"prompt": "Hi!", "return_token_strs": True}).reply
    assert "".join(named["token_strs"]) == "Hi!"
    plain = api.post("/v1/completions", {"prompt": "Hello, 世界", "max_tokens": 1}).reply["usage"]["prompt_tokens"]
    assert api.post("/tokenize", {"prompt": "Hello, 世界"}).reply["count"] == plain


def test_the_name_of_the_end_of_text_is_its_id(api):
    name = api.get("/tokenizer_info").reply["eos_token"]
    assert api.post("/tokenize", {"prompt": name}).reply["tokens"] == [0]
    assert api.post("/tokenize", {"prompt": ""}).reply["tokens"] == []


def test_a_chat_has_the_tokens_of_its_prompt(api):
    count = api.post("/tokenize", {"messages": HI}).reply["count"]
    usage = api.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1}).reply["usage"]
    assert count == usage["prompt_tokens"]
    tokens = api.post("/tokenize", {"messages": HI, "add_generation_prompt": False}).reply["tokens"]
    assert get_tokenizer().decode(tokens) == "User: Hi\n\n"


def test_the_chat_template_says_what_the_server_does(api):
    template = jinja2.Template(api.get("/tokenizer_info").reply["chat_template"])
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye "},
    ]
    expected = render_chat([Message(**message) for message in messages], style=think_style(None, None, None)).text
    assert template.render(messages=messages, add_generation_prompt=True) == expected


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, None),
        ("/tokenize", {"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [70_000]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_bad_values_are_refused(api, path, body, param):
    answer = api.post(path, body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_version_ping_and_load(api):
    assert api.get("/version").reply["version"]
    assert api.get("/ping").body == b""
    assert api.get("/ping").status == api.send("POST", "/ping").status == 200
    assert api.get("/load").reply["server_load"] >= 0


def test_embeddings_are_refused_with_a_reason(sdk, api):
    answer = api.post("/v1/embeddings", {"model": "rwkv7", "input": "x"})
    assert answer.status == 404
    assert "embeddings are not offered" in answer.json["error"]["message"]


def test_metrics(api):
    api.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
    answer = api.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    (slots,) = families["rwkv_engine_slots"].samples
    assert slots.value >= 1
    assert slots.labels["model"] == api.get("/v1/models").reply["data"][0]["id"]
    assert families["rwkv_engine_steps"].type == "counter"
    answered = [
        sample
        for sample in families["rwkv_http_requests"].samples
        if sample.name.endswith("_total") and sample.labels["route"] == "/v1/completions"
    ]
    assert {sample.labels["status"] for sample in answered} >= {"200"}


def test_several_chats_at_once(api, sdk):
    conversations = [HI, [{"role": "user", "content": "The fox"}]]
    reply = api.post("/v1/chat/completions/batch", {"messages": conversations, "temperature": 0, "max_tokens": 6}).reply
    for conversation, choice in zip(conversations, reply["choices"], strict=True):
        alone = sdk.chat.completions.create(model="rwkv7", messages=conversation, temperature=0, max_tokens=6)
        assert choice["message"]["content"] == alone.choices[0].message.content
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("more", "param"),
    [({"messages": []}, "messages"), ({"messages": HI}, "messages[0]"), ({"n": 2}, "n"), ({"stream": True}, "stream")],
)
def test_what_a_batch_of_chats_refuses(api, more, param):
    answer = api.post("/v1/chat/completions/batch", {"messages": [HI]} | more)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
