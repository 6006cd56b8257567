"""The page of flips: runs of one eval against a baseline, the first one of the address."""

from typing import TYPE_CHECKING

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from benchmarks.evals.baselines import baseline_of
from benchmarks.evals.comparison import Comparison, compare
from benchmarks.evals.models import EvalRun

if TYPE_CHECKING:
    from benchmarks.evals.admin import EvalRunAdmin

MOST_RUNS = 10
SHOWN_FLIPS = 200
TEMPLATE = "admin/benchmarks/evals/compare.html"


def comparison_view(page: "EvalRunAdmin", request: HttpRequest) -> HttpResponse:
    """`?runs=1,2,3` are primary keys; a single one is held against its own baseline.

    404 for fewer than two runs that exist, and for runs of different evals.
    """
    if not page.has_view_permission(request):
        raise PermissionDenied
    baseline, *others = _runs(request.GET.get("runs", ""))
    comparisons = [compare(baseline, run) for run in others]
    context = {
        **page.admin_site.each_context(request),
        "title": f"{baseline.task}: flips against {baseline}",
        "opts": page.opts,
        "baseline": baseline,
        "overview": _overview(baseline, comparisons),
        "comparisons": [(comparison, _flips(comparison)) for comparison in comparisons],
        "shown": SHOWN_FLIPS,
    }
    return TemplateResponse(request, TEMPLATE, context)


def _runs(text: str) -> list[EvalRun]:
    keys = [int(part) for part in text.split(",") if part.isdecimal()][:MOST_RUNS]
    found = EvalRun.objects.in_bulk(keys)
    runs = [found[key] for key in dict.fromkeys(keys) if key in found]
    if len(runs) == 1 and (baseline := baseline_of(runs[0])):
        runs = [baseline, *runs]
    if len(runs) < 2:
        raise Http404("runs: expected the numbers of two runs or more")
    if len({run.task for run in runs}) > 1:
        raise Http404("runs: they must be of one eval")
    return runs


def _overview(baseline: EvalRun, comparisons: list[Comparison]) -> dict[str, list]:
    headers = ["run", "engine", "accuracy", "perplexity", "bits/byte", "in both", "lost", "won", "p"]
    headers += ["Δ logprob, mean", "largest", "p of Δ"]
    rows = [[*_identity(baseline), *["–"] * 7]]
    for comparison in comparisons:
        changes = [comparison.mean_logprob_change, comparison.largest_logprob_change]
        rows.append(
            [
                *_identity(comparison.run),
                comparison.common,
                comparison.lost,
                comparison.won,
                f"{comparison.p:.4g}",
                *("–" if change is None else f"{change:+.5f}" for change in changes),
                "–" if comparison.logprob_p is None else f"{comparison.logprob_p:.4g}",
            ]
        )
    return {"headers": headers, "rows": rows}


def _identity(run: EvalRun) -> list[str]:
    score = "–"
    if run.acc is not None:
        low, high = run.summary["acc_ci95"]
        score = f"{run.acc:.2%} ({low:.2%} – {high:.2%})"
    means = ["–" if value is None else f"{value:.5g}" for value in (run.ppl, run.bits_per_byte)]
    return [str(run), run.engine_words, score, *means]


def _flips(comparison: Comparison) -> dict[str, list]:
    headers = ["document", "now", "expected", "baseline said", "run said", "logprob before", "after"]
    rows = [
        [
            flip.doc,
            "right" if flip.won else "wrong",
            repr(flip.expected),
            repr(flip.before),
            repr(flip.after),
            *("–" if value is None else f"{value:.4f}" for value in (flip.logprob_before, flip.logprob_after)),
        ]
        for flip in comparison.flips[:SHOWN_FLIPS]
    ]
    return {"headers": headers, "rows": rows}
