"""POST /v1/completions on the whole service, mostly through the official client."""

import asyncio
import math

import openai
import pytest

from inference.api.rows.engines import bus

PATH = "/v1/completions"
GREEDY = {"model": "rwkv7", "temperature": 0}


def test_every_form_of_prompt(sdk):
    alone = [sdk.completions.create(prompt=text, max_tokens=6, **GREEDY).choices[0].text for text in ("Hi", "The fox")]
    texts = sdk.completions.create(prompt=["Hi", "The fox"], max_tokens=6, **GREEDY)
    assert [choice.text for choice in texts.choices] == alone
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert all(choice.finish_reason == "length" for choice in texts.choices)
    one = sdk.completions.create(prompt=[3081], max_tokens=6, **GREEDY)
    many = sdk.completions.create(prompt=[[3081], [3081, 45]], max_tokens=6, **GREEDY)
    assert one.choices[0].text == many.choices[0].text
    assert many.usage.prompt_tokens == 3
    assert many.usage.completion_tokens == 12
    assert many.usage.total_tokens == 15


def test_the_default_is_sixteen_tokens_and_the_reply_names_the_model(sdk):
    reply = sdk.completions.create(model="rwkv-7-world", prompt="The quick brown fox", temperature=0)
    assert reply.usage.completion_tokens == 16
    assert reply.model == sdk.models.list().data[0].id
    assert reply.id.startswith("cmpl-")
    assert reply.object == "text_completion"


def test_n_choices_for_each_prompt(sdk):
    reply = sdk.completions.create(model="rwkv7", prompt=["a", "b"], n=2, seed=5, max_tokens=8)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in reply.choices}) == 4
    assert reply.usage.prompt_tokens == 2  # a prompt counts once
    assert reply.usage.completion_tokens == 32


def test_a_seed_repeats(sdk):
    def texts(**more):
        reply = sdk.completions.create(model="rwkv7", prompt="Once", n=2, max_tokens=8, **more)
        return [choice.text for choice in reply.choices]

    assert texts(seed=1) == texts(seed=1) != texts(seed=2)
    assert texts() != texts()


def test_a_suffix_asks_for_what_comes_before_it(sdk):
    filled = sdk.completions.create(prompt=["def f(", "x = "], suffix=" + 1", max_tokens=5, **GREEDY)
    prompts = ["✿prefix✿✿suffix✿ + 1✿middle✿def f(", "✿prefix✿✿suffix✿ + 1✿middle✿x = "]
    plain = sdk.completions.create(prompt=prompts, max_tokens=5, **GREEDY)
    assert [choice.text for choice in filled.choices] == [choice.text for choice in plain.choices]
    one = sdk.completions.create(prompt="x = ", suffix=" + 1", max_tokens=5, **GREEDY)
    assert one.choices[0].text == plain.choices[1].text


def test_best_of_gives_the_likeliest(sdk):
    body = {"model": "rwkv7", "prompt": "x", "seed": 3, "max_tokens": 4, "logprobs": 0}
    drawn = sdk.completions.create(n=4, **body).choices
    best = sdk.completions.create(n=1, best_of=4, **body)
    assert [choice.text for choice in best.choices] == [
        max(drawn, key=lambda choice: sum(choice.logprobs.token_logprobs)).text
    ]
    assert best.usage.completion_tokens == 16


def test_echo_with_logprobs_scores_the_prompt(api):
    """What lm-evaluation-harness sends for log-likelihoods."""
    prompts = [[3081, 45, 3081], [45, 300]]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = api.post(PATH, body).reply["choices"]
    for prompt, choice in zip(prompts, choices, strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        names, values, tops = (logprobs[name][1:] for name in ("tokens", "token_logprobs", "top_logprobs"))
        for name, value, top in zip(names, values, tops, strict=True):
            assert top[name] == value <= max(top.values())  # the token itself is listed, also when it is not the best
        greedy, best = logprobs["token_logprobs"][-1], logprobs["top_logprobs"][-1]
        assert max(best.values()) == greedy  # the same float, to the last bit
        assert logprobs["tokens"][-1] in best


def test_echo_scores_from_a_token_on(api):
    prompts = [[3081, 45, 3081, 300, 17], [45, 300, 3081]]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
    whole = [choice["logprobs"] for choice in api.post(PATH, body).reply["choices"]]
    for start, starts in ((2, (2, 2)), ([4, 1], (4, 1)), ([0, 9], (0, 9))):
        ends = [choice["logprobs"] for choice in api.post(PATH, {**body, "logprob_start_len": start}).reply["choices"]]
        for scored, end, first, prompt in zip(whole, ends, starts, prompts, strict=True):
            skipped = min(max(first, 1), len(prompt))
            assert end["tokens"] == scored["tokens"]
            for field in ("token_logprobs", "top_logprobs"):
                assert end[field][:skipped] == [None] * skipped
                assert rounded(end[field][skipped:]) == scored[field][skipped:]


def test_logprobs_belong_to_the_text(api):
    choice = api.post(PATH, {"prompt": "Hi", "max_tokens": 12, "temperature": 0, "logprobs": 3}).reply["choices"][0]
    logprobs = choice["logprobs"]
    for token, offset, value, top in zip(
        logprobs["tokens"], logprobs["text_offset"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        if not token.startswith(("bytes:", "token_id:")):
            assert choice["text"][offset:].startswith(token)
        assert len(top) == 3
        assert top[token] == value == max(top.values())
        assert sum(math.exp(candidate) for candidate in top.values()) <= 1 + 1e-5


def test_echo_without_new_tokens(api):
    reply = api.post(PATH, {"prompt": "Hi there", "max_tokens": 0, "echo": True, "logprobs": 1}).reply
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hi there", "length")
    assert "".join(choice["logprobs"]["tokens"]) == "Hi there"
    assert choice["logprobs"]["text_offset"][0] == 0
    assert reply["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_without_new_tokens_none_can_end_the_text(api, stream):
    """The engine draws one nevertheless, and it may be one that stops."""
    body = {"prompt": "Hi there", "max_tokens": 0, "echo": True, "temperature": 0}
    drawn = api.post(PATH, body | {"max_tokens": 1, "echo": False}).reply["choices"][0]["text"]
    token = api.post("/tokenize", {"prompt": drawn}).reply["tokens"][0]
    answer = api.post(PATH, body | {"stop_token_ids": [token], "stream": stream})
    (choice,) = [choice for reply in (answer.frames if stream else [answer.reply]) for choice in reply["choices"]]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hi there", "length", None)


def rounded(value):
    """Which rows share a step decides the last bits of a logprob."""
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 2}, {"max_tokens": 0, "echo": True}])
def test_a_stream_is_the_reply_in_parts(api, more):
    body = {"prompt": ["Hi", "Once"], "n": 2, "seed": 9, "max_tokens": 12, **more}
    whole = api.post(PATH, body).reply["choices"]
    frames = api.post(PATH, body | {"stream": True}).frames
    assert len({(frame["id"], frame["created"], frame["model"]) for frame in frames}) == 1
    assert all(frame["object"] == "text_completion" and "usage" not in frame for frame in frames)
    for choice in whole:
        parts = [part for frame in frames for part in frame["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            for name, values in choice["logprobs"].items():
                assert rounded([value for part in parts for value in part["logprobs"][name]]) == rounded(values)


def test_usage_in_a_stream_only_when_asked_for(api):
    body = {"prompt": "Hi", "max_tokens": 5, "temperature": 0, "ignore_eos": True, "stream": True}
    *frames, last = api.post(PATH, body | {"stream_options": {"include_usage": True}}).frames
    assert all(frame["usage"] is None for frame in frames)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (1, 5)
    running = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        frame["usage"]["completion_tokens"] for frame in api.post(PATH, body | {"stream_options": running}).frames
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_a_stop_string_ends_the_text_in_front_of_it(sdk):
    text = sdk.completions.create(prompt="Hi", max_tokens=20, **GREEDY).choices[0].text
    stop = text[len(text) // 2 :][:3]
    choice = sdk.completions.create(prompt="Hi", max_tokens=20, stop=[stop], **GREEDY).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    kept = {"include_stop_str_in_output": True}
    choice = sdk.completions.create(prompt="Hi", max_tokens=20, stop=stop, extra_body=kept, **GREEDY).choices[0]
    assert choice.text == text[: text.index(stop) + len(stop)]


def test_a_stop_token_ends_the_row(api):
    body = {"prompt": "Hi", "max_tokens": 8, "temperature": 0, "logit_bias": {"45": 100}}
    assert api.post(PATH, body).reply["choices"][0]["text"] == "," * 8
    stopped = api.post(PATH, body | {"stop_token_ids": [45]}).reply
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["stop_reason"]) == ("", 45)
    late = api.post(PATH, body | {"stop_token_ids": [45], "min_tokens": 3}).reply
    assert late["usage"]["completion_tokens"] >= 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [65536]}, "prompt[0]"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "temperature": -0.1}, "temperature"),
        ({"prompt": "a", "top_p": 2}, "top_p"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 1025}, "n"),
        ({"prompt": "a", "best_of": 1025}, "best_of"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": "a", "n": 2, "best_of": 1}, "best_of"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "stop": 5}, "stop"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
        ({"prompt": [1, 2], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprob_start_len": 1, "echo": True}, "logprob_start_len"),
        ({"prompt": "a", "logprob_start_len": [1, 2], "echo": True, "logprobs": 0}, "logprob_start_len"),
        ({"prompt": "a", "logprob_start_len": -1, "echo": True, "logprobs": 0}, "logprob_start_len"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_bad_values_are_refused_by_name(api, body, param):
    answer = api.post(PATH, body)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert answer.json["error"]["message"].startswith(f"{param}: ")


def test_the_official_client_raises_its_own_errors(sdk):
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.completions.create(model="gpt-5", prompt="a")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.completions.create(model="rwkv7", prompt="a", temperature=-1)
    assert bad.value.param == "temperature"


def test_a_choice_that_ends_at_once_tells_what_was_cached(api):
    body = {"prompt": [7 + n % 90 for n in range(600)], "max_tokens": 1, "temperature": 0, "logit_bias": {"100": 100}}
    assert api.post("/v1/completions", body).reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reply = api.post("/v1/completions", body | {"stop_token_ids": [100]}).reply
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("stop", 0)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 512


async def test_a_prompt_that_was_stopped_before_it_was_scored_has_no_logprobs(client, deaf_engine):
    body = {"prompt": "The quick fox", "echo": True, "logprobs": 0, "max_tokens": 1}
    running = asyncio.create_task(client.post(PATH, body, content_type="application/json"))
    while not bus().calls():
        await asyncio.sleep(0)
    for call in bus().calls():
        bus().stop(call)
    answer = await running
    assert answer.status_code == 200
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["The", " quick", " fox"]
    assert logprobs["token_logprobs"] == [None] * 3
