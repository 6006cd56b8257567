"""The other evals against a running service, each held against what the service says by itself."""

import asyncio
import json
import math
from collections import Counter

import pytest
from aiohttp import web

from benchmarks.evals.datasets import SHIPPED
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Options
from benchmarks.evals.registry import EVALS
from benchmarks.evals.rules import SPEEDS
from inference.text.tokenizer import get_tokenizer
from tests.api.conftest import Api


@pytest.fixture
def api(leaning) -> Api:
    return Api(leaning.url)


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SHIPPED / name).read_text().splitlines()]


def completion(api: Api, prompt: str, **fields):
    body = {"prompt": [0, *get_tokenizer().encode(prompt)], "temperature": 0, **fields}
    return api.post("/v1/completions", body).reply["choices"][0]


def test_what_ships_can_be_read():
    counts = {name: len(kind(Options()).read(kind.data)) for name, kind in EVALS.items() if kind.data}
    assert counts == {
        "next-token": 7,
        "generate": 7,
        "questions": 128,
        "consistency": 21,
        "mmlu": 20,
        "gsm8k": 20,
        "math": 10,
    }
    questions = [row["question"] for row in rows("questions.jsonl")]
    assert len(set(questions)) == 128


def test_next_tokens(leaning, api, run_eval):
    summary, items = run_eval("next-token", leaning.url, options=Options(top=3))
    assert summary.n == 7
    for doc, row in enumerate(rows("prompts.jsonl")):
        top = completion(api, row["prompt"], max_tokens=1, logprobs=3)["logprobs"]["top_logprobs"][0]
        found = items[doc]["details"]["top"]
        assert {entry["token"]: entry["p"] for entry in found} == pytest.approx(
            {token: math.exp(logprob) for token, logprob in top.items()}, rel=1e-3
        )
        assert found == sorted(found, key=lambda entry: -entry["p"])
        assert items[doc]["predicted"] == found[0]["token"]


def test_generated_texts(leaning, api, run_eval):
    _, items = run_eval("generate", leaning.url)
    for doc, row in enumerate(rows("prompts.jsonl")):
        assert items[doc]["predicted"] == completion(api, row["prompt"], max_tokens=10)["text"]


def test_questions_are_answered_with_their_throughput(leaning, run_eval):
    summary, items = run_eval("questions", leaning.url, limit=6, options=Options(max_tokens=8))
    assert summary.output_tokens == sum(item["tokens"] for item in items.values()) > 0
    assert summary.output_tokens_per_second == pytest.approx(summary.output_tokens / summary.seconds)
    assert "output tokens/s" in summary.line()
    known = [row["question"] for row in rows("questions.jsonl")]
    assert all(item["details"]["question"] == known[doc] for doc, item in items.items())
    assert summary.figures["seconds_max"] >= summary.figures["seconds_p50"] > 0


def test_questions_are_drawn_by_seed(tmp_path):
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps({"question": f"question {number}"}) + "\n" for number in range(300)))
    draws = [EVALS["questions"](Options(seed=seed)).read(data) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    for draw in draws:
        assert len({document.index for document in draw}) == len(draw) == 128
        assert all(document.text == f"question {document.index}" for document in draw)
    assert max(document.index for document in draws[0]) > 200, "not the first ones"


def test_a_file_of_few_questions_is_said_to_have_few(foreign, run_eval, tmp_path):
    data = tmp_path / "questions.jsonl"
    data.write_text('{"question": "a"}\n{"question": "b"}\n')
    summary, items = run_eval("questions", foreign.url, data=data)
    assert items.keys() == {0, 1}
    assert summary.note == "the file has 2 questions, fewer than 128"
    summary, _ = run_eval("questions", foreign.url, limit=2, output=tmp_path / "own")
    assert (summary.n, summary.note) == (2, "")


def test_the_figures_that_rules_may_name_are_there(foreign, leaning, run_eval, tmp_path, passages):
    text = tmp_path / "text.txt"
    text.write_text("one two three four")
    data = {"lambada": passages, "bpb": text}
    for name, kind in EVALS.items():
        options = Options(max_tokens=2, repeats=2, window=2)
        fields = {"data": data.get(name), "limit": 2, "options": options, "output": tmp_path / name}
        summary, _ = run_eval(name, leaning.url, **fields)
        assert all(isinstance(summary.flat()[figure], float) for figure in (*kind.figures, *SPEEDS)), name


def test_the_service_is_consistent(leaning, run_eval):
    summary, items = run_eval("consistency", leaning.url, limit=6, options=Options(max_tokens=8, repeats=4))
    assert summary.figures["acc"] == 1
    assert summary.figures["groups"].keys() == {"seed", "batch", "load"}
    assert all(item["predicted"] for item in items.values())


def test_a_server_whose_answers_depend_on_company_is_found(foreign, run_eval, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "a"}\n')

    def answer(body):

        lonely = len(body["prompt"]) == 1
        choices = [{"index": index, "text": f"alone {lonely}"} for index, _ in enumerate(body["prompt"])]
        return web.json_response({"choices": choices})

    foreign.behave = answer
    summary, _ = run_eval("consistency", foreign.url, data=data, options=Options(repeats=2))
    assert {name: group["acc"] for name, group in summary.figures["groups"].items()} == {
        "batch": 0,
        "load": 1,
        "seed": 1,
    }


def test_a_server_whose_answers_depend_on_load_is_found(foreign, run_eval, tmp_path):
    """The load goes first, and the prompt under test follows once all of it is being answered."""
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "a"}\n')
    busy = Counter()

    async def endless():
        busy["now"] += 1
        try:
            yield b"data: {}\n\n"
            await asyncio.Event().wait()
        finally:
            busy["now"] -= 1

    def answer(body):
        if body.get("stream"):
            busy["asked"] += 1
            return web.Response(body=endless(), content_type="text/event-stream")
        choices = [{"index": index, "text": f"{busy['now']} others"} for index, _ in enumerate(body["prompt"])]
        return web.json_response({"choices": choices})

    foreign.behave = answer
    _, items = run_eval("consistency", foreign.url, data=data, concurrency=1, options=Options(repeats=5))
    found = {item["group"]: (item["expected"], item["predicted"]) for item in items.values()}
    assert found["load"] == ("0 others", "4 others")
    assert found["seed"] == found["batch"] == ("0 others", "0 others")
    assert busy["asked"] == 4


def test_a_server_that_refuses_the_load_is_an_error(foreign, run_eval, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "a"}\n')

    def answer(body):
        if body.get("stream"):
            return web.Response(status=400, text="no streams here")
        return web.json_response({"choices": [{"index": place, "text": ""} for place, _ in enumerate(body["prompt"])]})

    foreign.behave = answer
    with pytest.raises(EvalError, match="HTTP 400: no streams here"):
        run_eval("consistency", foreign.url, data=data)


def test_bits_per_byte(leaning, api, run_eval, tmp_path):
    """Every token is scored, also where a window ends within a character."""
    text = "The quick brown fox. Zwölf Boxkämpfer. 敏捷的棕狐。🦊" * 2
    data = tmp_path / "text.txt"
    data.write_text(text)
    ids = get_tokenizer().encode(text)
    summary, _ = run_eval("bpb", leaning.url, data=data, options=Options(window=7))
    bits = 0.0
    for begin in range(0, len(ids), 7):
        body = {"prompt": [0, *ids[begin : begin + 7]], "echo": True, "logprobs": 0, "max_tokens": 0}
        logprobs = api.post("/v1/completions", body).reply["choices"][0]["logprobs"]["token_logprobs"]
        bits -= sum(logprobs[1:]) / math.log(2)
    assert summary.figures["bytes"] == len(text.encode())
    assert summary.figures["tokens"] == len(ids)
    assert summary.figures["bits_per_byte"] == pytest.approx(bits / len(text.encode()), rel=1e-4)
    low, high = summary.figures["bits_per_byte_ci95"]
    assert 0 < low < summary.figures["bits_per_byte"] < high
    with pytest.raises(EvalError, match="needs --prompts ids and a prefix token"):
        run_eval("bpb", leaning.url, data=data, options=Options(prefix=None))


def test_four_choices(leaning, api, run_eval):
    """The letters are not among the likely tokens of a random model, so all of them are scored."""
    summary, items = run_eval("mmlu", leaning.url, limit=3)
    for doc, row in enumerate(rows("four_choice.jsonl")[:3]):
        lines = [f"{letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True)]
        head = f"User: You are a very talented expert in {row['subject']}. Answer this question:\n{row['question']}"
        ids = [0, *get_tokenizer().encode("\n".join([head, *lines]) + "\n\nAssistant: The answer is")]
        prompts = [ids + get_tokenizer().encode(f" {letter}") for letter in "ABCD"]
        choices = api.post("/v1/completions", {"prompt": prompts, "echo": True, "logprobs": 0, "max_tokens": 0}).reply
        scores = [choice["logprobs"]["token_logprobs"][-1] for choice in choices["choices"]]
        assert list(items[doc]["details"]["logprobs"].values()) == pytest.approx(scores, abs=1e-3)
        assert items[doc]["predicted"] == "ABCD"[scores.index(max(scores))]
        assert items[doc]["expected"] == "ABCD"[row["answer"]]
    assert sum(group["n"] for group in summary.figures["groups"].values()) == 3


def test_four_choices_from_a_csv_and_from_likely_tokens(foreign, run_eval, tmp_path):

    data = tmp_path / "questions.csv"
    data.write_text('question,A,B,C,D,answer,subject\n"One, or two?",1,2,3,4,B,counting\n"Two\nlines?",1,2,3,4,0,\n')
    top = {" A": -3.0, " B": -1.0, " C": -2.0, " D": -4.0}

    def answer(body):
        logprobs = {"tokens": [" B"], "token_logprobs": [-1.0], "top_logprobs": [top], "text_offset": [0]}
        return web.json_response(
            {
                "choices": [
                    {"index": place, "text": " B", "logprobs": logprobs} for place, _ in enumerate(body["prompt"])
                ]
            }
        )

    foreign.behave = answer
    summary, items = run_eval("mmlu", foreign.url, data=data, options=Options(prompts="text"))
    assert foreign.requests == 1
    assert [items[doc]["correct"] for doc in (0, 1)] == [True, False]
    assert items[1]["logprob"] == -3.0
    assert summary.figures["groups"] == {"": {"n": 1, "acc": 0.0}, "counting": {"n": 1, "acc": 1.0}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "answer": 4, "choices": ["1", "2", "3", "4"]}, "answer: expected a letter from A to D"),
        ({"question": "a", "answer": "A", "choices": ["1", "2"]}, "choices: expected 4 texts"),
        (
            {"question": "a", "answer": 1, "choices": ["1", "2", "3", "4"], "subject": "s" * 201},
            "subject: expected at most 200 characters, got 201",
        ),
        ({"question": "a"}, "missing required field `answer`"),
    ],
)
def test_questions_that_are_refused(tmp_path, row, message):
    data = tmp_path / "questions.jsonl"
    data.write_text(json.dumps(row))
    with pytest.raises(EvalError, match=f"line 1: .*{message}"):
        EVALS["mmlu"](Options()).read(data)


@pytest.mark.parametrize(
    ("name", "solution", "right"),
    [
        ("gsm8k", "12 * 7 = 84, so it is 84 loaves.", True),
        ("gsm8k", "It is 85.", False),
        ("math", " Both are \\boxed{\\dfrac56}.", True),
        ("math", " I think 0.8.", False),
    ],
)
def test_solutions_are_judged(foreign, run_eval, name, solution, right):

    foreign.behave = lambda body: web.json_response({"choices": [{"index": 0, "text": solution}]})
    summary, items = run_eval(name, foreign.url, limit=1)
    assert items[0]["correct"] is right
    assert items[0]["details"]["solution"] == solution
    assert summary.figures["acc"] == right


def test_solutions_of_the_service_end_before_the_next_question(leaning, run_eval):
    summary, items = run_eval("gsm8k", leaning.url, limit=2, options=Options(max_tokens=6))
    assert summary.n == 2
    assert all("User:" not in item["details"]["solution"] for item in items.values())
