"""What runs are held against, and what becomes of the rules for them."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from benchmarks.evals import tasks
from benchmarks.evals.actions import NotPossible, pin_baseline
from benchmarks.evals.gating import judge
from benchmarks.evals.models import EvalBaseline, EvalRun, EvalSweep
from benchmarks.evals.statistics import accuracy, perplexity
from benchmarks.models import GateRule, Target
from benchmarks.models.runs import Status

pytestmark = pytest.mark.django_db


def scored(
    correct: int, *, n: int = 40, logprobs: Callable[[int], float | None] = lambda doc: -1.0, **fields
) -> EvalRun:
    """A done run that got the first documents right."""
    fields = {"task": "lambada", "series": "s", "status": Status.DONE, "base_url": "http://127.0.0.1", **fields}
    run = EvalRun.objects.create(**fields)
    items = [run.items.model(run=run, doc=doc, correct=doc < correct, logprob=logprobs(doc)) for doc in range(n)]
    run.items.bulk_create(items)
    known = [item.logprob for item in items if item.logprob is not None]
    run.summary = {**accuracy(items), **perplexity(known), "documents_per_second": 5.0}
    run.acc = run.summary["acc"]
    run.save()
    return run


def judged(run: EvalRun) -> list[str]:
    judge(run)
    return outcomes(run)


def outcomes(run: EvalRun) -> list[str]:
    run.refresh_from_db()
    return [gate["outcome"] for gate in run.gates]


@pytest.mark.parametrize(
    ("limit", "outcome"), [(0.5, "pass"), (0.55, "warn"), (0.9, "fail")], ids=["kept", "within chance", "broken"]
)
def test_an_absolute_rule_minds_the_interval(limit, outcome):
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=limit)
    run = scored(20)
    judge(run)
    run.refresh_from_db()
    assert [gate["outcome"] for gate in run.gates] == [outcome]


@pytest.mark.parametrize(("correct", "outcome"), [(30, "pass"), (27, "warn"), (10, "fail")])
def test_a_relative_rule_minds_the_flips(correct, outcome):
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=-1, relative=True)
    scored(30)
    run = scored(correct)
    judge(run)
    run.refresh_from_db()
    assert [gate["outcome"] for gate in run.gates] == [outcome]


def test_a_rule_without_its_figure_or_baseline_is_not_comparable():
    GateRule.objects.create(eval_task="lambada", metric="ppl", comparison="<=", limit=5)
    GateRule.objects.create(eval_task="lambada", metric="acc", comparison=">=", limit=-1, relative=True)
    GateRule.objects.create(eval_task="mmlu", metric="acc", comparison=">=", limit=1)
    assert judged(scored(20, series="", logprobs=lambda doc: None)) == ["not comparable", "not comparable"]


def relative(metric: str, limit: float, **fields) -> GateRule:
    comparison = "<=" if metric == "ppl" else ">="
    rule = GateRule(eval_task="lambada", metric=metric, comparison=comparison, limit=limit, relative=True, **fields)
    rule.full_clean()
    rule.save()
    return rule


def wobble(doc: int) -> float:
    """Up and down by turns."""
    return -1.0 + (0.5 if doc % 2 else -0.5)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [(lambda doc: wobble(doc) + 0.01, "pass"), (lambda doc: wobble(doc) - 0.1, "fail"), (lambda doc: -1.1, "warn")],
    ids=["better", "every document worse", "worse by chance"],
)
def test_a_relative_rule_on_perplexity_minds_the_paired_changes(change, outcome):
    """Both worse runs have the same perplexity, 10% above the baseline's."""
    relative("ppl", 5)
    scored(30, logprobs=wobble)
    assert judged(scored(30, logprobs=change)) == [outcome]


def test_a_relative_rule_on_what_has_no_test_only_warns():
    relative("documents_per_second", -5)
    scored(30)
    slow = scored(30)
    slow.summary["documents_per_second"] = 2.5
    assert judged(slow) == ["warn"]


@pytest.mark.parametrize("other", [{"settings": {"prefix": None}}, {}])
def test_runs_over_other_questions_are_not_comparable(other):
    relative("acc", -1)
    first = scored(30)
    first.summary["settings"] = {"prefix": 0}
    first.save()
    run = scored(10, n=40 if other else 39)
    run.summary |= other or {"settings": {"prefix": 0}}
    assert judged(run) == ["not comparable"]
    run.refresh_from_db()
    words = "was asked otherwise: prefix 0 → None" if other else "has not answered the same documents"
    assert words in run.gates[0]["words"]


def test_runs_that_end_before_the_first_of_their_series_are_judged_when_it_ends():
    relative("acc", -1)
    first = scored(30, status=Status.RUNNING)
    second = scored(10)
    assert judged(second) == ["not comparable"]
    first.status = Status.DONE
    first.save()
    judge(first)
    assert outcomes(second) == ["fail"]
    assert outcomes(first) == ["not comparable"]


def test_a_pinned_run_is_the_baseline_of_its_sweep_and_label(sweep):
    relative("acc", -1)
    pinned = scored(30, sweep=sweep, label="fp16", series="monday")
    later = scored(10, sweep=sweep, label="fp16", series="tuesday")
    other = scored(10, sweep=sweep, label="fp32", series="wednesday")
    assert judged(later) == ["not comparable"]
    pin_baseline(pinned, by="ada")
    assert judged(later) == ["fail"]
    assert judged(other) == judged(pinned) == ["not comparable"]
    pin_baseline(later, by="ada")
    assert judged(pinned) == ["pass"]
    assert EvalBaseline.objects.get().run == later
    for run in (scored(10), scored(10, sweep=sweep, status=Status.FAILED)):
        with pytest.raises(NotPossible, match="a run that is done, and belongs to a sweep"):
            pin_baseline(run, by="ada")


def test_a_rule_for_one_sweep_minds_no_other(sweep):
    sweep.pk, sweep.name = None, "weekly"
    sweep.save()
    rule = {"eval_task": "lambada", "metric": "acc", "comparison": ">=", "sweep": sweep}
    GateRule.objects.create(**rule, limit=0.9)
    assert judged(scored(20, sweep=sweep)) == ["fail"]
    assert judged(scored(20, sweep=EvalSweep.objects.get(name="nightly"))) == judged(scored(20)) == []


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"eval_task": "lambda"}, "eval_task", "is not a valid choice"),
        ({"metric": "accuracy"}, "metric", "lambada has no figure 'accuracy', but acc, ppl, documents_per_second"),
        ({"eval_task": "mmlu", "metric": "ppl"}, "metric", "mmlu has no figure 'ppl'"),
        ({"eval_task": "mmlu", "sweep": True}, "sweep", "is a sweep of lambada"),
    ],
)
def test_a_rule_that_could_never_hold_is_refused(sweep, fields, field, message):
    if "sweep" in fields:
        fields["sweep"] = sweep
    rule = GateRule(**{"eval_task": "lambada", "metric": "acc", "comparison": ">=", "limit": 1, **fields})
    with pytest.raises(ValidationError) as refused:
        rule.full_clean()
    assert message in refused.value.message_dict[field][0]


def test_a_run_whose_worker_died_before_it_was_judged_is_judged_by_whoever_tends_the_runs(redis_url):
    target = Target.objects.create(name="target", base_url="http://127.0.0.1")
    sweep, other = (EvalSweep.objects.create(name=name, task="lambada", target=target) for name in ("one", "two"))
    GateRule.objects.create(eval_task="lambada", sweep=sweep, metric="acc", comparison=">=", limit=0.5)
    ended = {"left": timedelta(minutes=2), "old": timedelta(days=2), "now": timedelta()}
    runs = {name: scored(30, series="", sweep=sweep, finished=timezone.now() - ago) for name, ago in ended.items()}
    without = scored(30, series="", sweep=other, finished=timezone.now() - timedelta(minutes=2))
    tasks.tend_evals()
    assert {name: outcomes(run) for name, run in runs.items()} == {"left": ["pass"], "old": [], "now": []}
    assert outcomes(without) == []
