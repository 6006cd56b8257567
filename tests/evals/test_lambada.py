"""LAMBADA over HTTP against the PyPI package `rwkv`, which runs the same checkpoint by itself.

TEST_LAMBADA_DOCUMENTS=500 with TEST_LAMBADA_DATA=<file> also compares as many documents of that file
on a 0.1B checkpoint, which takes minutes.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from benchmarks.evals.evaluation import Options
from tests.evals.leaning_model import make_leaning_checkpoint
from tests.evals.lm_eval import run_harness
from tests.service import Service

INDEPENDENT = Path(__file__).with_name("independent_lambada.py")
LOGPROB_TOLERANCE = 1e-3
FREQUENT = (" Sarah", " Gabriel", " menu", " drown")  # last words of several documents of the data


Results = list[tuple[float, bool]]


def independent(checkpoint: Path, data: Path, limit: int, *prefixes: str) -> dict[str, Results]:
    """By prefix: log probability and verdict of each document."""
    command = [sys.executable, str(INDEPENDENT), str(checkpoint), str(data), str(limit), *prefixes]
    environment = os.environ | {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(zip(prefixes, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def by_prefix(leaning_checkpoint: Path, passages: Path) -> dict[str, Results]:
    return independent(leaning_checkpoint, passages, 40, "0", "none")


def assert_same(summary, items, expected):
    assert len(items) == summary.n == len(expected)
    for doc, (logprob, right) in enumerate(expected):
        assert items[doc]["logprob"] == pytest.approx(logprob, abs=LOGPROB_TOLERANCE)
        assert items[doc]["correct"] == right
    right = sum(right for _, right in expected)
    assert summary.figures["correct"] == right
    assert summary.figures["acc"] == right / len(expected)
    mean = sum(logprob for logprob, _ in expected) / len(expected)
    assert math.log(summary.figures["ppl"]) == pytest.approx(-mean, abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("prefix", [0, None])
def test_the_same_as_an_independent_script(leaning, by_prefix, passages, run_eval, prefix):
    expected = by_prefix["none" if prefix is None else str(prefix)]
    assert 0 < sum(right for _, right in expected) < 40, "all or nothing would prove little"
    summary, items = run_eval("lambada", leaning.url, data=passages, options=Options(prefix=prefix))
    assert_same(summary, items, expected)
    assert summary.settings["prefix"] == prefix


def test_greedy_generation_gives_the_same_verdicts(leaning, passages, run_eval, tmp_path):
    _, forced = run_eval("lambada", leaning.url, data=passages)
    greedy = Options(procedure="greedy")
    summary, items = run_eval("lambada", leaning.url, data=passages, options=greedy, output=tmp_path / "greedy")
    assert {doc: item["correct"] for doc, item in items.items()} == {
        doc: item["correct"] for doc, item in forced.items()
    }
    assert "acc" in summary.figures and "ppl" not in summary.figures


def test_prompts_of_text_are_scored_as_their_ids_without_a_prefix(leaning, passages, run_eval, tmp_path):
    _, ids = run_eval("lambada", leaning.url, data=passages, options=Options(prefix=None))
    text = Options(prompts="text")
    _, texts = run_eval("lambada", leaning.url, data=passages, options=text, output=tmp_path / "text")
    for doc, item in ids.items():
        assert texts[doc]["correct"] == item["correct"]
        assert texts[doc]["tokens"] == item["tokens"]
        assert texts[doc]["logprob"] == pytest.approx(item["logprob"], abs=1e-4)


@pytest.mark.parametrize(
    ("continuation", "right"),
    [
        (" door", True),
        (" door. He went", True),
        ("\n door and", True),
        ("door", True),
        (" doors", False),
        (" door-keeper", False),
        (" door's", False),
        (" the door", False),
        ("", False),
    ],
)
def test_greedy_texts_are_compared_by_their_first_words(foreign, run_eval, tmp_path, continuation, right):
    """Whatever the vocabulary of the server is; a last "word" may be several, with a new line between them."""
    data = tmp_path / "passages.jsonl"
    data.write_text('{"text": "at last he saw the door"}\n{"text": "at last he saw the door.\\n“Oh”"}\n')
    asked = []

    def answer(body):
        asked.append(body)
        texts = [continuation, " door.\n“Oh”, he said"]
        return web.json_response({"choices": [{"index": place, "text": text} for place, text in enumerate(texts)]})

    foreign.behave = answer
    options = Options(prompts="text", procedure="greedy")
    _, items = run_eval("lambada", foreign.url, data=data, options=options)
    assert [items[doc]["correct"] for doc in (0, 1)] == [right, True]
    assert asked[0]["prompt"] == ["at last he saw the"] * 2
    assert asked[0]["max_tokens"] == 16


def test_a_right_document_says_its_word_though_another_is_as_likely(foreign, passages, run_eval):
    """A coarse data type makes equals; the stand-in's "best" is as likely as each token that it likes."""
    _, items = run_eval("lambada", foreign.url, data=passages)
    assert {item["correct"] for item in items.values()} == {True, False}
    for item in items.values():
        assert (item["predicted"] == item["expected"]) == item["correct"]


def test_greedy_texts_of_the_service_give_the_verdicts_of_its_words(leaning, passages, run_eval, tmp_path):
    _, texts = run_eval("lambada", leaning.url, data=passages, options=Options(prompts="text", procedure="greedy"))
    bare = Options(prefix=None, procedure="greedy")
    _, ids = run_eval("lambada", leaning.url, data=passages, options=bare, output=tmp_path / "ids")
    assert any(item["correct"] for item in texts.values())
    for doc, item in texts.items():
        assert item["predicted"].startswith(ids[doc]["predicted"])
        if item["correct"]:
            assert ids[doc]["correct"]


@pytest.mark.slow
def test_the_same_as_lm_eval(leaning, passages, run_eval, tmp_path):
    """It puts no token in front of a prompt."""
    harness = run_harness(leaning.url, passages, 40, tmp_path / "harness")
    summary, items = run_eval("lambada", leaning.url, data=passages, options=Options(prefix=None))
    assert_same(summary, items, harness.documents)
    assert (harness.acc, harness.ppl) == pytest.approx((summary.figures["acc"], summary.figures["ppl"]), rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif("TEST_LAMBADA_DOCUMENTS" not in os.environ, reason="set TEST_LAMBADA_DOCUMENTS (and _DATA)")
def test_many_documents_on_a_larger_model(tmp_path, run_eval, capsys):
    from inference.engine.synthetic import make_checkpoint

    limit, data = int(os.environ["TEST_LAMBADA_DOCUMENTS"]), Path(os.environ["TEST_LAMBADA_DATA"])
    make_checkpoint(tmp_path / "plain.pth", "0.1b")
    make_leaning_checkpoint(tmp_path / "plain.pth", tmp_path / "model.pth", FREQUENT)
    (tmp_path / "var").mkdir()
    service = Service(tmp_path / "var", MODEL=str(tmp_path / "model.pth"))
    try:
        service.wait_until_healthy()
        summary, items = run_eval("lambada", service.url, data=data, limit=limit)
        harness = run_harness(service.url, data, limit, tmp_path / "harness")
        bare = {"options": Options(prefix=None), "output": tmp_path / "bare"}
        bare_summary, bare_items = run_eval("lambada", service.url, data=data, limit=limit, **bare)
        with capsys.disabled():
            print(f"\nlm-eval: acc {harness.acc} ppl {harness.ppl}; here: {bare_summary.line()}")
        assert_same(bare_summary, bare_items, harness.documents)
    finally:
        service.stop()
    expected = independent(tmp_path / "model.pth", data, limit, "0")["0"]
    with capsys.disabled():
        worst = max(abs(items[doc]["logprob"] - logprob) for doc, (logprob, _) in enumerate(expected))
        print(f"\n{summary.line()}\nlargest difference of a log probability: {worst:.2e}")
    assert_same(summary, items, expected)
