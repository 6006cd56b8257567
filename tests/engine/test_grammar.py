"""Rows with a grammar in the step loop: a model that draws anything its masks allow."""

import random
import re

import numpy as np
import pytest

from inference.bus.messages import Generate, RowOutput
from inference.engine.backend import StepPlan
from inference.engine.engine import Engine
from inference.engine.grammar import Grammars
from inference.grammars import GrammarCompiler, GrammarError
from tests.engine.counting_backend import CountingBackend, _Done

WORDS = [b"", *[bytes([byte]) for byte in range(256)], b"ab", b"abc", b'{"', b'":', b'"}', b"true"]
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlapped"])


class DrawingBackend(CountingBackend):
    """Draws at random from a row's mask; rows without a mask count, as ever."""

    def __init__(self, slots: int, *, overlap: bool = False) -> None:
        super().__init__(slots, overlap=overlap)
        self._random = random.Random(3)

    def launch(self, plan: StepPlan) -> _Done:
        done = super().launch(plan)
        tokens = done.result().tokens
        for slot, mask in plan.masks.items():
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(WORDS))
            tokens[slot] = self._last[slot] = self._random.choice(np.flatnonzero(bits).tolist())
        return done


def make_engine(overlap: bool, slots: int = 4) -> Engine:
    grammars = Grammars(GrammarCompiler(lambda: WORDS), vocab=len(WORDS))
    return Engine(DrawingBackend(slots, overlap=overlap), step_tokens=64, grammars=grammars)


def request(row: int, grammar: str, max_tokens: int = 500, **more) -> Generate:
    return Generate(web="w", row=row, model="m", prompt=[5], max_tokens=max_tokens, grammar=grammar, **more)


def run(engine: Engine, *requests: Generate) -> dict[int, list[RowOutput]]:
    outputs: dict[int, list[RowOutput]] = {}
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        for _web, output in engine.step():
            outputs.setdefault(output.row, []).append(output)
    return outputs


def text(outputs: list[RowOutput]) -> str:
    return b"".join(WORDS[token] for output in outputs for token in output.tokens).decode()


@OVERLAPS
def test_every_row_follows_its_own_grammar_to_its_end(overlap):
    patterns = {row: rf"[a-c]{{{row}}}x[0-9]{{{row}}}" for row in range(1, 9)}
    outputs = run(make_engine(overlap), *[request(row, f"start: /{pattern}/") for row, pattern in patterns.items()])
    for row, pattern in patterns.items():
        assert re.fullmatch(pattern, text(outputs[row]))
        assert (outputs[row][-1].finish, outputs[row][-1].stop_id) == ("stop", -1)


@OVERLAPS
def test_rows_without_a_grammar_are_not_held_up(overlap):
    engine = make_engine(overlap)
    outputs = run(engine, request(1, "start: /[ab]{20}/"), request(2, "", max_tokens=30))
    assert [token for output in outputs[2] for token in output.tokens] == list(range(6, 36))
    assert engine.counters.steps <= 45, "one step for each token of the free row, two for each constrained one"


@OVERLAPS
def test_a_text_that_may_end_ends_with_the_end_of_text(overlap):
    (outputs,) = run(make_engine(overlap), request(1, "start: /a*/")).values()
    assert (outputs[-1].finish, outputs[-1].stop_id) == ("stop", 0)
    assert set(text(outputs)) <= {"a"}


@OVERLAPS
def test_a_resumed_row_goes_on_where_it_was(overlap):
    (outputs,) = run(make_engine(overlap), request(1, 'start: "abcabc"', generated=[WORDS.index(b"abc")])).values()
    assert text(outputs) == "abc"
    assert outputs[0].position == 1


@OVERLAPS
@pytest.mark.parametrize(
    ("grammar", "generated", "error"),
    [("start: /(/", [], "regex"), ('start: "abc"', [WORDS.index(b"true")], "does not follow the grammar")],
)
def test_a_grammar_that_fails_ends_its_row_alone(overlap, grammar, generated, error):
    engine = make_engine(overlap, slots=1)
    outputs = run(engine, request(1, grammar, generated=generated), request(2, 'start: "ab"'))
    assert [output.finish for output in outputs[1]] == ["error"]
    assert error in outputs[1][0].error
    assert text(outputs[2]) == "ab"


@OVERLAPS
def test_the_token_limit_holds(overlap):
    (outputs,) = run(make_engine(overlap), request(1, "start: /a{50}/", max_tokens=3)).values()
    assert sum(len(output.tokens) for output in outputs) == 3
    assert outputs[-1].finish == "length"


def test_a_row_that_waits_for_its_grammar_can_be_cancelled():
    engine = make_engine(overlap=False)
    engine.submit(request(1, 'start: "ab"'))
    assert engine.cancel(("w", 1))[1].finish == "cancelled"
    assert not engine.has_work


def test_a_bad_grammar_is_refused_in_one_line():
    with pytest.raises(GrammarError) as caught:
        GrammarCompiler(lambda: WORDS).compile('start: %json {"type": "objekt"}')
    assert "objekt" in str(caught.value)
    assert "\n" not in str(caught.value)
