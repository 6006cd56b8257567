from argparse import ArgumentParser
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from django.core.management import call_command

from benchmarks.commands import gate as command
from benchmarks.loadgen import gates
from benchmarks.loadgen.compare import Group
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.gates import Direction, GateRule, Outcome
from benchmarks.loadgen.records import RunResult
from tests.loadgen.sample_runs import noisy_run

RULES = ["--rule", "tpot.median<=+10%", "--rule", "ttft.median<=+10%", "--rule", "success_rate>=0.99"]


def bench_gate(*words: str) -> tuple[int, str]:
    parser, stdout = ArgumentParser(), StringIO()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words), stdout), stdout.getvalue()


def saved(folder: Path, results: list[RunResult]) -> list[str]:
    paths = [folder / f"{result.run_id}.json" for result in results]
    for path, result in zip(paths, results, strict=True):
        path.write_bytes(msgspec.json.encode(result))
    return [str(path) for path in paths]


def runs(first_seed: int, *, slower: float = 1.0, count: int = 3) -> list[RunResult]:
    return [noisy_run(seed, slower=slower) for seed in range(first_seed, first_seed + count)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_regression_of_a_fifth_fails(tmp_path: Path, count: int) -> None:
    old, new = saved(tmp_path, runs(10, count=count)), saved(tmp_path, runs(20, slower=1.2, count=count))
    code, text = bench_gate(*new, "--baseline", *old, *RULES)
    assert code == 1
    assert text.startswith("FAIL")
    assert "tpot.median<=+10%" in text


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", [20, 30, 40])
def test_noise_passes(tmp_path: Path, count: int, seed: int) -> None:
    old, new = saved(tmp_path, runs(10, count=count)), saved(tmp_path, runs(seed, count=count))
    code, text = bench_gate(*new, "--baseline", *old, *RULES)
    assert (code, "FAIL" in text) == (0, False)


def test_what_chance_explains_is_a_warning_and_no_failure() -> None:
    """The repeats lie 20% apart from one another, so that a mean 11% higher is no news."""
    groups = []
    for label, values in (("old", (80.0, 100.0, 120.0)), ("new", (90.0, 111.0, 132.0))):
        results = [noisy_run(1, requests=2) for _ in values]
        for result, value in zip(results, values, strict=True):
            result.summary["latency_ms"]["ttft"]["median"] = value
        groups.append(Group(label, results))
    [found] = gates.evaluate([gates.parse("ttft.median<=+10%")], groups[1], groups[0])
    assert found.outcome is Outcome.WARN
    assert found.value == pytest.approx(11)
    assert "chance may explain" in found.words


def test_an_absolute_rule_needs_no_baseline() -> None:
    run = Group("run", [noisy_run(1, requests=40)])
    rules = [gates.parse("success_rate>=1"), gates.parse("e2el.max<=1"), gates.parse("ttft.p99<=500")]
    met, broken, unknown = gates.evaluate(rules, run)
    assert (met.outcome, met.value, met.words) == (Outcome.PASS, 1.0, "1 share; at least 1 share is allowed")
    assert broken.outcome is Outcome.FAIL
    assert unknown.outcome is Outcome.UNKNOWN
    assert "it needs 1,000" in unknown.words


def test_an_absolute_rule_is_for_the_mean_of_repeats() -> None:
    results = [noisy_run(1, requests=2) for _ in range(2)]
    for result, value in zip(results, (90.0, 120.0), strict=True):
        result.summary["latency_ms"]["ttft"]["median"] = value
    [found] = gates.evaluate([gates.parse("ttft.median<=110")], Group("run", results))
    assert (found.outcome, found.value) == (Outcome.PASS, 105.0)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ttft.p99<=500", GateRule("ttft.p99", Direction.AT_MOST, 500.0)),
        (" output_throughput >= -5 % ", GateRule("output_throughput", Direction.AT_LEAST, -5.0, relative=True)),
        ("itl.p99.9<=+2.5%", GateRule("itl.p99.9", Direction.AT_MOST, 2.5, relative=True)),
    ],
)
def test_a_rule_is_read_as_it_is_written(text: str, rule: GateRule) -> None:
    assert gates.parse(text) == rule
    assert gates.parse(str(rule)) == rule


@pytest.mark.parametrize("text", ["ttft.p99<500", "ttft.p99<=fast", "nothing<=1", "ttft<=1", "ttft.p98<=1", ""])
def test_a_bad_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|metric"):
        gates.parse(text)


def test_outcomes_together() -> None:
    def together(*outcomes: Outcome) -> Outcome:
        rule = gates.parse("success_rate>=1")
        return gates.worst([gates.GateResult(rule, outcome, None, "") for outcome in outcomes])

    assert together() is Outcome.PASS
    assert together(Outcome.PASS, Outcome.WARN) is Outcome.WARN
    assert together(Outcome.WARN, Outcome.UNKNOWN, Outcome.PASS) is Outcome.UNKNOWN
    assert together(Outcome.UNKNOWN, Outcome.FAIL) is Outcome.FAIL


def test_rules_may_come_from_a_file(tmp_path: Path) -> None:
    [run] = saved(tmp_path, [noisy_run(1, requests=20)])
    rules = tmp_path / "rules"
    rules.write_text("# of the nightly run\nsuccess_rate>=1  # all of them\n\nttft.max<=1\n")
    code, text = bench_gate(run, "--rules", str(rules))
    assert code == 1
    assert [line.split()[0] for line in text.splitlines()] == ["PASS", "FAIL"]


def test_a_rule_that_cannot_be_told_exits_with_2(tmp_path: Path) -> None:
    [run] = saved(tmp_path, [noisy_run(1, requests=20)])
    code, text = bench_gate(run, "--rule", "ttft.median<=+10%", "--rule", "success_rate>=1")
    assert code == 2
    assert "there is no baseline" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--rule: there is none"),
        (["--rule", "ttft<1"], "--rule: 'ttft<1' is no rule"),
        (["--rules", "missing"], "--rules: missing: No such file"),
        (["--rule", "ttft.median<=+10%", "--baseline", "missing.json"], "missing.json: No such file"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, words: list[str], message: str) -> None:
    [run] = saved(tmp_path, [noisy_run(1, requests=20)])
    with pytest.raises(BadOption) as caught:
        bench_gate(run, *words)
    assert message in str(caught.value)


@pytest.mark.parametrize(("slower", "code"), [(1.2, 1), (1.0, 0)])
def test_the_exit_code_reaches_the_shell(tmp_path: Path, slower: float, code: int) -> None:
    old, new = saved(tmp_path, runs(10)), saved(tmp_path, runs(20, slower=slower))
    try:
        call_command("bench", "gate", *new, "--baseline", *old, *RULES, stdout=StringIO())
        exited = 0
    except SystemExit as error:
        exited = error.code
    assert exited == code
