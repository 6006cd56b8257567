import msgspec
import pytest

from inference.api.edge.errors import InvalidRequest
from inference.api.edge.schemas import OpenAIFields, SamplingFields
from inference.api.generating.sampling import (
    BATCH,
    BIG_BATCH,
    CHAT,
    COMPLETION,
    FIM,
    NATIVE,
    V2,
    build_gumbel,
    build_sampling,
    change_sampling,
    choice_seed,
    collect_stops,
)
from inference.bus.messages import MAX_LOGIT_EDITS, MAX_STOP_IDS, Sampling


def test_each_route_has_its_own_defaults():
    native = build_sampling(SamplingFields(), NATIVE, 0)
    assert (native.temperature, native.top_k, native.top_p) == (1.0, 50, 0.6)
    assert (native.penalty, native.presence, native.frequency, native.decay) == ("native", 2.0, 0.2, 0.996)
    plain = build_sampling(OpenAIFields(), COMPLETION, 0)
    assert (plain.temperature, plain.top_k, plain.top_p) == (1.0, 0, 1.0)
    assert (plain.presence, plain.frequency, plain.repetition) == (0.0, 0.0, 1.0)


def test_openai_penalties_win_over_native_ones():
    fields = OpenAIFields(presence_penalty=0.5, alpha_presence=3.0, alpha_frequency=4.0)
    sampling = build_sampling(fields, CHAT, 0)
    assert (sampling.penalty, sampling.presence, sampling.frequency, sampling.decay) == ("openai", 0.5, 0.0, 1.0)


def test_temperature_zero_is_greedy_without_the_routes_penalties():
    greedy = build_sampling(OpenAIFields(temperature=0.0), CHAT, 0)
    assert (greedy.temperature, greedy.presence, greedy.frequency) == (0.0, 0.0, 0.0)
    asked = build_sampling(OpenAIFields(temperature=0.0, alpha_presence=1.5), CHAT, 0)
    assert asked.presence == 1.5


@pytest.mark.parametrize(("given", "used"), [(None, 1.0), (0.5, 0.5), (0, 0.0), (-1, 0.0), (1e30, 1000.0)])
def test_the_big_batch_knows_temperature_and_seed_alone(given, used):
    sampling = build_gumbel(SamplingFields(temperature=given, top_k=5, alpha_presence=1.0, seed=3), BIG_BATCH, 0)
    assert sampling == Sampling(method="gumbel", temperature=used, seed=choice_seed(3, 0))


def test_a_change_leaves_the_rest_as_it_was():
    before = Sampling(temperature=0.5, top_k=7, top_p=0.4, presence=1.0, decay=0.9, seed=5, min_p=0.1)
    assert change_sampling(before, SamplingFields()) == before
    after = change_sampling(before, SamplingFields(temperature=0.0, top_k=-1, alpha_presence=0.0))
    assert after == msgspec.structs.replace(before, temperature=0.0, top_k=0, presence=0.0)


def test_no_more_stop_ids_than_an_engine_has_room_for():
    most = list(range(1, MAX_STOP_IDS))
    assert len(collect_stops(SamplingFields(stop_token_ids=most), NATIVE).ids) == MAX_STOP_IDS  # and the end of text
    with pytest.raises(InvalidRequest, match=r"stop_token_ids: expected at most 64 ids, .* got 65"):
        collect_stops(SamplingFields(stop_token_ids=most, stop_tokens=[1000]), NATIVE)


def test_no_more_changed_logits_than_an_engine_has_room_for():
    most = dict.fromkeys(range(MAX_LOGIT_EDITS), 1.0)
    assert build_sampling(SamplingFields(logit_bias=most), NATIVE, 0).logit_bias == most
    for more in ({"fields": SamplingFields(logit_bias=most, min_tokens=1)}, {"bans": [(0, 7)]}):
        fields = more.pop("fields", SamplingFields(logit_bias=most))
        with pytest.raises(InvalidRequest, match="logit_bias: expected at most"):
            build_sampling(fields, NATIVE, 0, **more)


@pytest.mark.parametrize(("given", "used"), [(1e-30, 0.001), (0.8, 0.8), (1e30, 1000.0)])
def test_temperatures_stay_in_the_range_of_the_kernels(given, used):
    assert build_sampling(SamplingFields(temperature=given), NATIVE, 0).temperature == used


@pytest.mark.parametrize(("top_k", "top_p"), [(-1, -0.1), (70_000, 1.5), (2**80, 1e300)])
def test_top_k_and_top_p_out_of_range_mean_no_limit(top_k, top_p):
    sampling = build_sampling(SamplingFields(top_k=top_k, top_p=top_p), NATIVE, 0)
    assert (sampling.top_k, sampling.top_p) == (0, 1.0)


def test_a_seed_repeats_for_each_choice_and_differs_between_choices():
    def seed(given, choice):
        return build_sampling(SamplingFields(seed=given), NATIVE, choice).seed

    assert seed(7, 0) == seed(7, 0)
    assert len({seed(7, 0), seed(7, 1), seed(8, 0), seed(-7, 0), seed(None, 0), seed(None, 0)}) == 6
    assert all(0 <= seed(given, 3) < 2**63 for given in (None, 0, -1, 2**80))


@pytest.mark.parametrize(
    ("fields", "defaults", "ids", "texts"),
    [
        ({}, NATIVE, [0], ["\nUser:"]),
        ({}, COMPLETION, [0], []),
        ({}, FIM, [0], []),
        ({}, V2, [0], ["\nUser:"]),
        ({}, BATCH, [0, 261, 24281], []),
        ({"stop_tokens": []}, NATIVE, [0], []),
        ({"stop_tokens": [0, 261, 24281]}, NATIVE, [0, 261, 24281], []),
        ({"stop_tokens": ["✿", 261, "✿"]}, NATIVE, [0, 261], ["✿"]),
        ({"stop": "END"}, CHAT, [0], ["\nUser:", "END"]),
        ({"stop": ["a", "", "b"], "stop_tokens": "c", "stop_token_ids": [5]}, CHAT, [0, 5], ["c", "a", "b"]),
        ({"ignore_eos": True}, CHAT, [], []),
        ({"ignore_eos": True, "stop": ["x"], "stop_token_ids": [0, 9]}, CHAT, [9], ["x"]),
    ],
)
def test_stops(fields, defaults, ids, texts):
    stops = collect_stops(OpenAIFields(**fields), defaults)
    assert (stops.ids, stops.texts) == (ids, texts)
