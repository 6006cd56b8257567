"""The pages of evals in the admin."""

from http import HTTPStatus

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from benchmarks.evals.evaluation import Item
from benchmarks.evals.models import EvalRun, EvalSweep
from benchmarks.evals.statistics import accuracy, perplexity
from benchmarks.evals.storage import store_items
from benchmarks.models import Target
from benchmarks.models.runs import Status

pytestmark = pytest.mark.django_db

RUNS = "admin:benchmarks_evalrun_changelist"
COMPARE = "admin:benchmarks_evalrun_compare"
SETTINGS = {"prompts": "ids", "prefix": 0, "procedure": "logprobs", "sha256": "aa"}


def done_run(label: str, right: set[int], **fields) -> EvalRun:
    """A run over 30 documents."""
    run = EvalRun.objects.create(
        **{"task": "lambada", "label": label, "series": "s", "base_url": "http://127.0.0.1:1", "status": Status.DONE}
        | fields
    )
    items = [
        Item(
            doc=doc,
            correct=doc in right,
            logprob=-1.0 - doc / 100,
            predicted=f"<b>{label} {doc}</b>",
            expected=" door\0",
        )
        for doc in range(30)
    ]
    store_items(run, items)
    figures = {**accuracy(items), **perplexity([item.logprob or 0.0 for item in items])}
    run.summary = {**figures, "settings": SETTINGS, "prompt_tokens_per_second": 1234.5}
    run.acc, run.ppl, run.n, run.documents = figures["acc"], figures["ppl"], 30, 30
    run.save()
    return run


@pytest.fixture
def runs() -> tuple[EvalRun, EvalRun]:
    return done_run("fp16", set(range(20))), done_run("fp32", set(range(3, 22)))


def test_the_score_with_its_interval(admin_client, runs):
    for url in (reverse(RUNS), reverse("admin:benchmarks_evalrun_change", args=[runs[0].pk])):
        page = admin_client.get(url).text
        assert "66.67% (48.78% – 80.77%)" in page
    assert "ids behind the prefix token 0" in page
    assert "1,234" in page


def test_every_document(admin_client, runs):
    url = reverse("admin:benchmarks_evalitem_changelist")
    page = admin_client.get(url, {"run__id__exact": runs[0].pk})
    assert [item.doc for item in page.context["cl"].result_list] == list(range(30))
    assert "&lt;b&gt;fp16 7&lt;/b&gt;" in page.text and "<b>fp16 7" not in page.text
    assert "-1.0700" in page.text
    page = admin_client.get(url, {"run__id__exact": runs[0].pk, "correct__exact": 0})
    assert [item.doc for item in page.context["cl"].result_list] == list(range(20, 30))


def test_flips_against_a_baseline(admin_client, runs):
    page = admin_client.get(reverse(COMPARE), {"runs": f"{runs[0].pk},{runs[1].pk}"})
    assert page.status_code == HTTPStatus.OK
    ((comparison, flips),) = page.context["comparisons"]
    assert (comparison.lost, comparison.won, comparison.common) == (3, 2, 30)
    assert [row[:2] for row in flips["rows"]] == [
        [0, "wrong"],
        [1, "wrong"],
        [2, "wrong"],
        [20, "right"],
        [21, "right"],
    ]
    assert "fp32 20" in page.text and "asked otherwise" not in page.text
    assert f"{comparison.p:.4g}" in page.text


def test_runs_that_were_asked_otherwise_are_marked(admin_client, runs):
    runs[1].summary["settings"] = SETTINGS | {"prefix": None}
    runs[1].save()
    page = admin_client.get(reverse(COMPARE), {"runs": f"{runs[0].pk},{runs[1].pk}"}).text
    assert "asked otherwise" in page and "prefix 0 → None" in page


@pytest.mark.parametrize("given", ["", "1", "x,y", "1,99999"])
def test_a_comparison_needs_two_runs(admin_client, given):
    assert admin_client.get(reverse(COMPARE), {"runs": given}).status_code == HTTPStatus.NOT_FOUND


def test_runs_of_different_evals_are_not_compared(admin_client, runs):
    other = done_run("other", set(), task="mmlu")
    page = admin_client.get(reverse(COMPARE), {"runs": f"{runs[0].pk},{other.pk}"})
    assert page.status_code == HTTPStatus.NOT_FOUND


def test_the_action_leads_to_the_comparison(admin_client, runs):
    chosen = {"action": "compare", "_selected_action": [run.pk for run in runs]}
    answer = admin_client.post(reverse(RUNS), chosen)
    assert answer.url == f"{reverse(COMPARE)}?runs={runs[0].pk},{runs[1].pk}"


def test_cancel_and_go_on(admin_client, redis_url):
    run = EvalRun.objects.create(task="lambada", base_url="http://127.0.0.1:1")
    for action, status in (("cancel", Status.CANCELLED), ("resume", Status.QUEUED)):
        admin_client.post(reverse(RUNS), {"action": action, "_selected_action": [run.pk]})
        run.refresh_from_db()
        assert run.status == status


def test_a_sweep_is_made_and_run(admin_client, redis_url):
    target = Target.objects.create(name="here", base_url="http://127.0.0.1:1")
    form = {
        "name": "new",
        "task": "mmlu",
        "target": target.pk,
        "concurrency": 4,
        "options": "{}",
        "data": "",
        "limit": "",
    }
    refused = admin_client.post(reverse("admin:benchmarks_evalsweep_add"), {**form, "entries": '[{"x": 1}]'})
    assert "unknown field" in refused.text
    admin_client.post(
        reverse("admin:benchmarks_evalsweep_add"), {**form, "entries": '[{"label": "a"}, {"label": "b"}]'}
    )
    sweep = EvalSweep.objects.get()
    url = reverse("admin:benchmarks_evalsweep_changelist")
    admin_client.post(url, {"action": "run_now", "_selected_action": [sweep.pk]})
    assert [run.label for run in sweep.runs.order_by("pk")] == ["a", "b"]


def test_a_list_costs_the_same_for_any_number(admin_client, django_assert_max_num_queries):
    for number in range(20):
        EvalRun.objects.create(task="lambada", label=str(number), base_url="http://127.0.0.1:1")
    with django_assert_max_num_queries(12):
        admin_client.get(reverse(RUNS))


def test_staff_without_permission_see_nothing(client, runs):
    client.force_login(User.objects.create_user("sam", password="sam", is_staff=True))
    names = [RUNS, "admin:benchmarks_evalsweep_changelist", "admin:benchmarks_evalitem_changelist"]
    for url in [*map(reverse, names), f"{reverse(COMPARE)}?runs={runs[0].pk},{runs[1].pk}"]:
        assert client.get(url).status_code == HTTPStatus.FORBIDDEN
