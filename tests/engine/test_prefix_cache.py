"""Prompts that begin alike: their common beginning is prefilled once, and that makes no difference."""

import numpy as np

from inference.bus.messages import END_OF_TEXT, History
from inference.engine.state_cache import SavedState
from inference.history import BLOCK, root
from tests.engine.history_rig import OVERLAPS, Rig, alone


def test_a_shared_prefix_is_prefilled_once():
    rig = Rig(prefix_bytes=2**20)
    shared = [n % 50 + 1 for n in range(2000)]
    for ending in range(20):
        before = rig.fed
        row = rig.submit([*shared, 1000 + ending], keep=False)
        outputs = rig.finish()[row]
        assert [token for output in outputs for token in output.tokens] == alone([*shared, 1000 + ending])
        assert outputs[0].cached_tokens == (7 * BLOCK if ending else 0)
        assert rig.fed - before == (2001 - 7 * BLOCK if ending else 2001)
    assert rig.states.counters.cached_tokens == 19 * 7 * BLOCK


@OVERLAPS
def test_prompts_that_come_at_once_share_the_prefill_of_their_beginning(overlap):
    rig = Rig(prefix_bytes=2**20, overlap=overlap)
    shared = [n % 50 + 1 for n in range(3 * BLOCK)]
    prompts = [[*shared, 1000 + ending] for ending in range(6)]
    rows = [rig.submit(prompt, keep=False) for prompt in prompts]
    outputs = rig.finish()
    for row, prompt in zip(rows, prompts, strict=True):
        assert [token for output in outputs[row] for token in output.tokens] == alone(prompt)
    assert rig.fed == len(shared) + len(prompts)


def test_rows_go_on_when_the_one_they_wait_for_ends_early():
    rig = Rig(prefix_bytes=2**20)
    prompt = [5] * (2 * BLOCK)
    first, second = rig.submit(prompt), rig.submit([*prompt, 6])
    rig.engine.step()
    assert rig.engine.cancel(("web", first))
    assert [token for output in rig.finish()[second] for token in output.tokens] == alone([*prompt, 6])


def test_a_budget_too_small_for_any_prefix_stops_nobody():
    rig = Rig(prefix_bytes=1)
    prompt = [5] * (2 * BLOCK)
    rows = [rig.submit([*prompt, ending]) for ending in (6, 7, 8)]
    outputs = rig.finish()
    assert all(outputs[row][-1].finish == "length" for row in rows)


def test_a_repeated_prompt_is_prefilled_but_for_its_last_border():
    rig = Rig(prefix_bytes=2**20)
    prompt = list(range(1, 2 * BLOCK + 1))
    assert rig.ask(prompt) == rig.ask(prompt) == alone(prompt)
    assert rig.states.counters.cached_tokens == BLOCK, "one token at least is fed, for its logits"


def test_nothing_is_shared_between_owners():
    rig = Rig(prefix_bytes=2**20)
    prompt = list(range(1, 600))
    for owner in ("one", "other"):
        assert rig.ask(prompt, History(digest=root("model", owner))) == alone(prompt)
    assert rig.states.counters.cached_tokens == 0


def test_the_prefix_cache_keeps_to_its_budget():
    rig = Rig(prefix_bytes=4 * 3 * BLOCK)  # this model's states grow: 4 bytes a token
    first, second = [1] * 600, [2] * 600
    for prompt in (first, second, second, first):
        assert rig.ask(prompt) == alone(prompt)
    assert rig.states.counters.cached_tokens == 2 * BLOCK, "the first was dropped for the second"


def test_prompt_logprobs_need_the_whole_prompt():
    rig = Rig(prefix_bytes=2**20)
    prompt = [END_OF_TEXT + 1] * 600
    rig.ask(prompt)
    row = rig.submit(prompt, prompt_logprobs=0)
    assert len(rig.finish()[row][0].prompt_logprobs) == 600


def test_an_initial_state_is_loaded_once_however_many_begin_with_it():
    rig = Rig(prefix_bytes=2**20)
    start = root("model", "owner", "tuned")
    history = History(digest=start, start=1, pending=[9])
    tuned = {"fed": np.array([1, 2, 3], dtype=np.uint32)}
    rig.store.saved[start] = SavedState(digest=start, tokens=0, pending=[9], state=tuned)
    rig.store.at_once = False
    shared = [5] * BLOCK
    rows = [rig.submit([*shared, ending], history, keep=False) for ending in (6, 7, 8)]
    rig.engine.step()
    assert len(rig.store.waiting) == 1
    rig.store.answer()
    outputs = rig.finish()
    for row, ending in zip(rows, (6, 7, 8), strict=True):
        assert [token for output in outputs[row] for token in output.tokens] == alone([1, 2, 3, 9, *shared, ending])
    assert rig.fed == 1 + len(shared) + len(rows)
    assert rig.ask([4], history) == alone([1, 2, 3, 9, 4]), "it is in memory now"
