"""The scheduler and the step loop, nearly always with a model that counts."""

import pytest

from inference.bus.messages import Generate, RowOutput, Sampling
from inference.engine.engine import Engine
from inference.engine.scheduler import Scheduler
from inference.engine.torch_backend import TorchBackend
from tests.engine.counting_backend import CountingBackend

OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlapped"])


def request(row: int, prompt: list[int], max_tokens: int = 4, **more) -> Generate:
    return Generate(web="web", row=row, model="counting", prompt=prompt, max_tokens=max_tokens, **more)


def run(engine: Engine, *requests: Generate, most_steps: int = 1000) -> dict[int, list[RowOutput]]:
    outputs: dict[int, list[RowOutput]] = {}
    for one in requests:
        engine.submit(one)
    for _ in range(most_steps):
        for _web, output in engine.step():
            outputs.setdefault(output.row, []).append(output)
        if not engine.has_work:
            return outputs
    raise AssertionError(f"still at work after {most_steps} steps")


def tokens(outputs: list[RowOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


@OVERLAPS
def test_each_row_gets_its_own_continuation(overlap):
    engine = Engine(CountingBackend(slots=3, overlap=overlap), step_tokens=8)
    outputs = run(engine, *[request(row, [100 * row] * row, max_tokens=row) for row in range(1, 9)])
    assert {row: tokens(news) for row, news in outputs.items()} == {
        row: [100 * row + 1 + i for i in range(row)] for row in range(1, 9)
    }
    assert all(news[-1].finish == "length" for news in outputs.values())
    assert all(output.position == i for news in outputs.values() for i, output in enumerate(news))


@OVERLAPS
def test_a_stop_id_ends_a_row_and_is_not_its_output(overlap):
    engine = Engine(CountingBackend(slots=2, overlap=overlap), step_tokens=8)
    outputs = run(engine, request(1, [10], max_tokens=50, stop_ids=[13, 0]), request(2, [10], max_tokens=5))
    assert tokens(outputs[1]) == [11, 12]
    assert (outputs[1][-1].finish, outputs[1][-1].stop_id, outputs[1][-1].position) == ("stop", 13, 2)
    assert tokens(outputs[2]) == [11, 12, 13, 14, 15]


class RefusingBackend(CountingBackend):
    """Has no room for the stop id 7."""

    def open_slot(self, slot, sampling, stop_ids, generated, prompt):
        super().open_slot(slot, sampling, stop_ids, generated, prompt)
        if 7 in stop_ids:
            raise ValueError("stop_ids: at most 0, got 1")


@OVERLAPS
def test_a_row_that_the_back_end_refuses_fails_alone(overlap):
    engine = Engine(RefusingBackend(slots=3, overlap=overlap), step_tokens=8)
    outputs = run(engine, request(1, [10]), request(2, [20], stop_ids=[7]), request(3, [30]))
    (refused,) = outputs[2]
    assert (refused.finish, refused.error, refused.tokens) == ("error", "stop_ids: at most 0, got 1", [])
    assert (tokens(outputs[1]), tokens(outputs[3])) == ([11, 12, 13, 14], [31, 32, 33, 34])
    assert tokens(run(engine, request(4, [40]), request(5, [50]), request(6, [60]))[6]) == [61, 62, 63, 64]


def test_ids_that_the_model_does_not_have_fail_their_row_alone(deep_checkpoint):
    backend = TorchBackend(deep_checkpoint, slots=2)
    outputs = run(Engine(backend, step_tokens=8), request(1, [10, 512]), request(2, [20]))
    assert [(output.finish, output.error) for output in outputs[1]] == [
        ("error", "prompt: token ids must be in 0 .. 511, got 10 .. 512")
    ]
    assert len(tokens(outputs[2])) == 4


@OVERLAPS
def test_rows_join_a_running_batch_and_leave_it(overlap):
    backend = CountingBackend(slots=4, overlap=overlap)
    engine = Engine(backend, step_tokens=64)
    engine.submit(request(1, [1], max_tokens=30))
    for _ in range(5):
        engine.step()
    outputs = run(engine, request(2, [500], max_tokens=3))
    assert tokens(outputs[2]) == [501, 502, 503]
    together = [plan for plan in backend.plans if len(plan.decode) == 2]
    assert len(together) == 2, "the second row decodes beside the first one"
    assert len(tokens(outputs[1])) >= 20


@OVERLAPS
def test_a_slot_is_used_again_by_a_waiting_row(overlap):
    engine = Engine(CountingBackend(slots=1, overlap=overlap), step_tokens=8)
    outputs = run(engine, *[request(row, [1000 * row], max_tokens=3, stop_ids=[1000 * row + 3]) for row in (1, 2, 3)])
    assert [tokens(outputs[row]) for row in (1, 2, 3)] == [[1001, 1002], [2001, 2002], [3001, 3002]]


def test_no_step_is_larger_than_its_token_budget_and_decodes_always_run():
    backend = CountingBackend(slots=8)
    engine = Engine(backend, step_tokens=16)
    engine.submit(request(1, [5], max_tokens=100))
    engine.step()
    run(engine, *[request(row, list(range(50 + row)), max_tokens=2) for row in range(2, 8)])
    for plan in backend.plans:
        assert len(plan.decode) + sum(len(chunk.tokens) for chunk in plan.chunks) <= 16
    running = backend.plans[1:100]
    assert all(plan.decode for plan in running), "a running row moves at every step whatever is prefilled"


def test_a_short_prompt_overtakes_a_long_one_which_still_moves():
    backend = CountingBackend(slots=2)
    engine = Engine(backend, step_tokens=10)
    engine.submit(request(1, [1] * 200, max_tokens=1))
    engine.step()
    engine.submit(request(2, [7] * 5, max_tokens=1))
    news = engine.step()
    assert [output.row for _, output in news] == [2]
    assert len(backend.plans[1].chunks[0].tokens) >= 5


@OVERLAPS
def test_a_cancelled_row_frees_its_slot_at_once(overlap):
    engine = Engine(CountingBackend(slots=1, overlap=overlap), step_tokens=8)
    engine.submit(request(1, [1], max_tokens=1000))
    engine.submit(request(2, [50], max_tokens=2))
    engine.step()
    engine.step()
    assert engine.capacity == -1
    web, ended = engine.cancel(("web", 1))
    assert (web, ended.row, ended.finish) == ("web", 1, "cancelled")
    assert engine.capacity == 0
    assert engine.cancel(("web", 1)) is None
    outputs = run(engine)
    assert 1 not in outputs and tokens(outputs[2]) == [51, 52]
    assert engine.capacity == 1 and not engine.running_rows()


def test_a_waiting_row_can_be_cancelled():
    engine = Engine(CountingBackend(slots=1), step_tokens=8)
    engine.submit(request(1, [1], max_tokens=3))
    engine.submit(request(2, [50], max_tokens=2))
    engine.step()
    assert engine.cancel(("web", 2))[1].finish == "cancelled"
    assert set(run(engine)) == {1}


@OVERLAPS
def test_a_resumed_row_goes_on_behind_what_was_delivered(overlap):
    engine = Engine(CountingBackend(slots=2, overlap=overlap), step_tokens=8)
    outputs = run(engine, request(1, [10, 11], max_tokens=6, generated=[12, 13, 14]))
    assert tokens(outputs[1]) == [15, 16, 17]
    assert [output.position for output in outputs[1]] == [3, 4, 5]


@OVERLAPS
def test_prompt_logprobs_come_once_and_are_aligned_across_chunks(overlap):
    engine = Engine(CountingBackend(slots=2, overlap=overlap), step_tokens=4)
    prompt = list(range(20, 31))
    outputs = run(engine, request(1, prompt, max_tokens=2, prompt_logprobs=0, logprobs=0))
    logprobs = outputs[1][0].prompt_logprobs
    assert logprobs[0] is None
    assert [entry.logprob for entry in logprobs[1:]] == [-float(token) for token in prompt[1:]]
    assert outputs[1][1].prompt_logprobs is None
    assert [output.logprobs[0].logprob for output in outputs[1]] == [-31.0, -32.0]


@OVERLAPS
@pytest.mark.parametrize("start", [2, 4, 5, 9, 10, 40, 2**62])
def test_prompt_logprobs_from_a_token_on(overlap, start):
    """Whether the chunks of four tokens end before it, at it or behind it."""
    engine = Engine(CountingBackend(slots=2, overlap=overlap), step_tokens=4)
    prompt = list(range(20, 31))
    more = {"prompt_logprobs": 0, "prompt_logprobs_from": start}
    logprobs = run(engine, request(1, prompt, max_tokens=1, **more))[1][0].prompt_logprobs
    assert [entry and entry.logprob for entry in logprobs] == [
        -float(token) if index >= start else None for index, token in enumerate(prompt)
    ]


def test_a_row_that_scores_nothing_of_its_prompt_can_be_ended():
    engine = Engine(CountingBackend(slots=2), step_tokens=4)
    engine.submit(request(1, [5, 6], prompt_logprobs=0, prompt_logprobs_from=2**62))
    ((_web, output),) = engine.abort("error")
    assert (output.finish, output.prompt_logprobs) == ("error", [None, None])


@OVERLAPS
def test_a_row_of_no_new_tokens_gives_only_its_prompts_logprobs(overlap):
    engine = Engine(CountingBackend(slots=2, overlap=overlap), step_tokens=4)
    outputs = run(engine, request(1, [5, 6, 7, 8, 9], max_tokens=0, prompt_logprobs=0))
    assert [(output.tokens, output.finish) for output in outputs[1]] == [([], "length")]
    assert len(outputs[1][0].prompt_logprobs) == 5
    assert not engine.has_work


def test_an_empty_prompt_starts_a_new_document():
    outputs = run(Engine(CountingBackend(slots=1), step_tokens=4), request(1, [], max_tokens=2))
    assert tokens(outputs[1]) == [1, 2]


def test_a_passed_deadline_ends_a_row_with_a_reason():
    engine = Engine(CountingBackend(slots=1), step_tokens=4)
    engine.submit(request(1, [1], max_tokens=100, deadline=50.0))
    engine.submit(request(2, [1], max_tokens=2))
    engine.step()
    assert engine.expire(now=49.0) == []
    [(_, late)] = engine.expire(now=51.0)
    assert (late.row, late.finish, late.error) == (1, "expired", "the request's deadline has passed")
    assert set(run(engine)) == {2}


def test_abort_ends_everything():
    engine = Engine(CountingBackend(slots=1, overlap=True), step_tokens=4)
    engine.submit(request(1, [1], max_tokens=100))
    engine.submit(request(2, [1], max_tokens=100))
    engine.step()
    engine.step()
    assert sorted((output.row, output.finish) for _, output in engine.abort("lost")) == [(1, "lost"), (2, "lost")]
    assert not engine.has_work and engine.capacity == 1


def test_the_operations_page_sees_each_rows_phase():
    engine = Engine(CountingBackend(slots=2), step_tokens=4)
    engine.submit(request(1, [1], max_tokens=10))
    engine.submit(request(2, [1] * 40, max_tokens=10))
    engine.submit(request(3, [1], max_tokens=10))
    engine.step()
    engine.step()
    assert {row.row: (row.state, row.generated_tokens) for row in engine.running_rows()} == {
        1: ("decode", 2),
        2: ("prefill", 0),
        3: ("waiting", 0),
    }


def test_a_scheduler_without_slots_is_refused():
    with pytest.raises(ValueError, match="slots and step_tokens must be positive, got 0 and 8"):
        Scheduler(slots=0, step_tokens=8)


def test_sampling_parameters_reach_the_back_end():
    opened = []
    backend = CountingBackend(slots=1)
    original = backend.open_slot
    backend.open_slot = lambda *args: (opened.append(args), original(*args))
    sampling = Sampling(temperature=0.5, seed=7)
    run(Engine(backend, step_tokens=4), request(1, [3], max_tokens=1, sampling=sampling, generated=[], stop_ids=[9]))
    assert opened == [(0, sampling, [9], [], [3])]
