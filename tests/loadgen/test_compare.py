import json
from argparse import ArgumentParser
from io import StringIO
from pathlib import Path
from random import Random

import msgspec
import pytest

from benchmarks.commands import compare as command
from benchmarks.loadgen import compare
from benchmarks.loadgen.chance import spread_of_samples
from benchmarks.loadgen.compare import Change, Group, Method, Verdict
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.records import RunResult
from tests.loadgen.sample_runs import noisy_run


def repeats(label: str, first_seed: int, *, slower: float = 1.0, count: int = 4) -> Group:
    seeds = range(first_seed, first_seed + count)
    return Group(label, [noisy_run(seed, slower=slower, label=label, requests=60) for seed in seeds])


def single(seed: int, slower: float = 1.0) -> Group:
    return Group(f"run-{seed}", [noisy_run(seed, slower=slower)])


def changes(baseline: Group, candidate: Group) -> dict[str, Change]:
    [found] = compare.compare(baseline, [candidate])
    return {change.figure.name: change for change in found.changes}


def test_slower_is_worse_and_faster_is_better() -> None:
    slow = changes(single(1), single(2, slower=1.3))["ttft.median"]
    assert slow.verdict is Verdict.WORSE
    assert slow.change == pytest.approx(0.3, abs=0.12)
    assert slow.low is not None and slow.change is not None and slow.high is not None
    assert 0 < slow.low < slow.change < slow.high
    fast = changes(single(1, slower=1.3), single(2))["ttft.median"]
    assert fast.verdict is Verdict.BETTER


def test_more_throughput_is_better() -> None:
    baseline, candidate = single(1), single(1)
    for result, rate in ((baseline.results[0], 100.0), (candidate.results[0], 200.0)):
        result.records = []
        result.summary["output_throughput"] = {"full": rate, "measured": None}
    groups = (Group("a", [*baseline.results] * 2), Group("b", [*candidate.results] * 2))
    assert compare.change(*groups, "output_throughput").verdict is Verdict.BETTER
    assert compare.change(*reversed(groups), "output_throughput").verdict is Verdict.WORSE


def test_equal_runs_show_no_difference() -> None:
    run = Group("run", [noisy_run(1, requests=400)])
    found = changes(run, run)
    assert found["ttft.median"].verdict is Verdict.SAME
    assert found["output_throughput"].verdict is Verdict.SAME
    assert found["success_rate"].verdict is Verdict.SAME


def test_repeats_give_the_interval_where_there_are_some() -> None:
    found = changes(repeats("old", 10), repeats("new", 30))["tpot.median"]
    assert (found.method, found.verdict) == (Method.REPEATS, Verdict.SAME)
    slow = changes(repeats("old", 10), repeats("new", 20, slower=1.2))["tpot.median"]
    assert (slow.method, slow.verdict) == (Method.REPEATS, Verdict.WORSE)


def test_a_single_run_is_held_against_the_scatter_of_the_repeats() -> None:
    """Within the run TPOT hardly varies, so that its requests alone would call a difference of 3% certain."""
    old = repeats("old", 10)
    new = Group("new", [noisy_run(50, slower=1.03, requests=60)])
    assert changes(old, new)["tpot.median"].verdict is Verdict.SAME


def test_the_interval_of_repeats_is_students() -> None:
    """Worked out by hand: variance 1 on both sides, 4 degrees of freedom, t = 2.776."""
    groups = []
    for label, values in (("old", (9.0, 10.0, 11.0)), ("new", (14.0, 15.0, 16.0))):
        results = [noisy_run(1, requests=2) for _ in values]
        for result, value in zip(results, values, strict=True):
            result.summary["latency_ms"]["ttft"]["median"] = value
        groups.append(Group(label, results))
    found = compare.change(*groups, "ttft.median")
    reach = 2.776 * (2 / 3) ** 0.5
    assert (found.low, found.high) == (pytest.approx((5 - reach) / 10), pytest.approx((5 + reach) / 10))


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    """They differ by chance alone: of 40 intervals at 95%, more than 8 without zero would be a wonder (p < 0.001)."""
    random = Random(3)
    missed = 0
    for _ in range(40):
        old, new = ([(block, random.expovariate(1)) for block in range(60)] for _ in range(2))
        difference = sum(value for _, value in new) / 60 - sum(value for _, value in old) / 60
        below, above = spread_of_samples(old, new, "mean")
        missed += not difference + below <= 0 <= difference + above
    assert missed <= 8


def test_a_missing_figure_cannot_be_told() -> None:
    found = changes(single(1), single(2))["ttft.p99"]  # 200 requests have no 99th percentile
    assert (found.value, found.change, found.verdict) == (None, None, Verdict.UNKNOWN)


def test_a_handful_of_requests_tells_nothing() -> None:
    groups = [Group(str(seed), [noisy_run(seed, requests=5, slower=slower)]) for seed, slower in ((1, 1.0), (2, 3.0))]
    found = changes(*groups)["ttft.median"]
    assert (found.low, found.method, found.verdict) == (None, Method.NONE, Verdict.UNKNOWN)
    assert found.change is not None and found.change > 1


def test_what_differs_is_listed_and_what_must_not_is_warned_of() -> None:
    baseline, candidate = single(1), single(2)
    candidate.results[0].profile |= {"seed": 5, "max_concurrency": 8}
    candidate.results[0].health.verdict = "client-limited"
    candidate.results[0].health.reasons = ["late"]
    candidate.results[0].summary["output_token_sources"] = {"chunks": 200}
    [found] = compare.compare(baseline, [candidate])
    assert found.configuration == {"seed": (0, 5), "max_concurrency": (None, 8)}
    assert found.warnings == [
        "the seed differs: 0 and 5",
        "output tokens were counted in different ways: usage and chunks",
        "run-2: the client limited the load: late",
    ]


def test_other_prompts_from_the_same_options_are_warned_of() -> None:
    baseline, candidate = single(1), single(2)
    for number, group in enumerate((baseline, candidate)):
        group.results[0].environment["dataset"] = {"sha256": str(number)}
    [found] = compare.compare(baseline, [candidate])
    assert found.warnings == ["the prompts differ, though they come from the same data set and seed"]


def test_prompts_that_were_meant_to_differ_are_not_warned_of() -> None:
    baseline, candidate = single(1), single(2)
    for number, group in enumerate((baseline, candidate)):
        group.results[0].environment["dataset"] = {"sha256": str(number)}
        group.results[0].profile["prompt_seed"] = number
    [found] = compare.compare(baseline, [candidate])
    assert (found.warnings, found.configuration) == ([], {"prompt_seed": (0, 1)})


def test_runs_of_one_label_are_one_group() -> None:
    results = [noisy_run(1, label="a", requests=2), noisy_run(2, requests=2), noisy_run(3, label="a", requests=2)]
    groups = compare.group(results)
    assert [(one.label, len(one.results)) for one in groups] == [("a", 2), ("run-2", 1)]


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(ValueError, match=r"'tftt\.p99' is not known"):
        compare.change(single(1), single(2), "tftt.p99")
    with pytest.raises(ValueError, match=r"'ttft' needs a statistic, such as ttft\.median"):
        compare.change(single(1), single(2), "ttft")


def bench_compare(*words: str) -> tuple[int, str]:
    parser, stdout = ArgumentParser(), StringIO()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words), stdout), stdout.getvalue()


def saved(folder: Path, result: RunResult) -> str:
    path = folder / f"{result.run_id}.json"
    path.write_bytes(msgspec.json.encode(result))
    return str(path)


def test_the_command_shows_a_table_or_json(tmp_path: Path) -> None:
    files = [saved(tmp_path, noisy_run(1)), saved(tmp_path, noisy_run(2, slower=1.3))]
    code, text = bench_compare(*files, "--metric", "ttft.median", "--baseline", "run-1")
    assert code == 0
    assert "run-2 against run-1" in text
    assert "worse (by requests)" in text
    code, text = bench_compare(*files, "--metric", "ttft.median", "--json")
    assert json.loads(text)[0]["changes"][0]["verdict"] == "worse"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}"], "nothing to compare"),
        (["{run}", "missing.json"], "missing.json: No such file"),
        (["{run}", "{run}", "--baseline", "x"], "--baseline: 'x' is none of run-1"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, words: list[str], message: str) -> None:
    run = saved(tmp_path, noisy_run(1, requests=2))
    with pytest.raises(BadOption) as caught:
        bench_compare(*(word.format(run=run) for word in words))
    assert message in str(caught.value)
