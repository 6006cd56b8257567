"""The pages of evals in the admin."""

from http import HTTPStatus

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import F
from django.urls import reverse
from scipy.stats import ttest_1samp

from benchmarks.evals.evaluation import Item
from benchmarks.evals.journal import ITEMS
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


@pytest.mark.parametrize("by", ["page", "action"])
def test_the_folder_and_the_documents_of_a_run_go_with_it(admin_client, runs, by, django_capture_on_commit_callbacks):
    gone, stays = runs
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / ITEMS).write_text("{}\n")
    with django_capture_on_commit_callbacks(execute=True):
        if by == "page":
            admin_client.post(reverse("admin:benchmarks_evalrun_delete", args=[gone.pk]), {"post": "yes"})
        else:
            chosen = {"action": "delete_selected", "_selected_action": [gone.pk], "post": "yes"}
            admin_client.post(reverse(RUNS), chosen)
        assert gone.folder.exists()  # the database may still take the deletion back
    assert list(EvalRun.objects.all()) == [stays]
    assert (gone.folder.exists(), stays.folder.exists()) == (False, True)


def test_the_action_leads_to_the_comparison(admin_client, runs):
    chosen = {"action": "compare", "_selected_action": [run.pk for run in runs]}
    answer = admin_client.post(reverse(RUNS), chosen)
    assert answer.url == f"{reverse(COMPARE)}?runs={runs[0].pk},{runs[1].pk}"


def choose(client, action: str, *runs: EvalRun):
    return client.post(reverse(RUNS), {"action": action, "_selected_action": [run.pk for run in runs]})


def test_a_baseline_is_made_used_and_dropped(admin_client):
    target = Target.objects.create(name="here", base_url="http://127.0.0.1:1")
    sweep = EvalSweep.objects.create(name="nightly", task="lambada", target=target)
    monday, tuesday = (done_run("fp16", set(range(n)), sweep=sweep, series=f"s{n}") for n in (20, 10))
    page = reverse("admin:benchmarks_evalrun_change", args=[tuesday.pk])
    both = f"{reverse(COMPARE)}?runs={monday.pk},{tuesday.pk}"
    assert "Flips against" not in admin_client.get(page).text
    assert (
        "or one that has a baseline"
        in admin_client.post(reverse(RUNS), {"action": "compare", "_selected_action": [tuesday.pk]}, follow=True).text
    )

    choose(admin_client, "make_baseline", monday)
    baseline = sweep.baselines.get()
    assert (baseline.run, baseline.label, baseline.set_by) == (monday, "fp16", "admin")
    assert both.replace(",", "%2C") in admin_client.get(page).text or both in admin_client.get(page).text
    assert choose(admin_client, "compare", tuesday).url == both
    assert admin_client.get(reverse(COMPARE), {"runs": tuesday.pk}).context["baseline"] == monday
    wednesday = done_run("fp16", set(), sweep=sweep, series="s0")
    assert choose(admin_client, "compare", tuesday, wednesday).url == f"{both},{wednesday.pk}"
    assert (
        "The baseline of its sweep"
        in admin_client.get(reverse("admin:benchmarks_evalrun_change", args=[monday.pk])).text
    )

    choose(admin_client, "drop_baseline", monday)
    assert not sweep.baselines.exists()
    assert "Flips against" not in admin_client.get(page).text


def test_a_newer_run_may_be_the_baseline_of_older_ones(admin_client):
    target = Target.objects.create(name="here", base_url="http://127.0.0.1:1")
    sweep = EvalSweep.objects.create(name="nightly", task="lambada", target=target)
    old, new = (done_run("fp16", set(range(n)), sweep=sweep, series=f"s{n}") for n in (20, 10))
    choose(admin_client, "make_baseline", new)
    assert choose(admin_client, "compare", old, new).url == f"{reverse(COMPARE)}?runs={new.pk},{old.pk}"


def test_only_those_who_may_set_baselines_do(client, runs):
    user = User.objects.create_user("sam", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_evalrun"))
    client.force_login(user)
    page = client.get(reverse(RUNS)).text
    assert 'value="compare"' in page
    assert "make_baseline" not in page and "drop_baseline" not in page


def test_the_p_of_changed_log_probabilities(admin_client, runs):
    page = admin_client.get(reverse(COMPARE), {"runs": f"{runs[0].pk},{runs[1].pk}"})
    row = dict(zip(page.context["overview"]["headers"], page.context["overview"]["rows"][1], strict=True))
    assert (row["Δ logprob, mean"], row["p of Δ"]) == ("+0.00000", "1")
    runs[1].items.update(logprob=F("logprob") - 0.5)
    runs[1].items.filter(doc=3).update(logprob=-9)
    page = admin_client.get(reverse(COMPARE), {"runs": f"{runs[0].pk},{runs[1].pk}"})
    row = dict(zip(page.context["overview"]["headers"], page.context["overview"]["rows"][1], strict=True))
    changes = [-0.5] * 29 + [-9 + 1.03]
    assert row["p of Δ"] == f"{ttest_1samp(changes, 0).pvalue:.4g}"


def test_a_run_that_has_asked_nothing_yet_has_no_prefix_policy(admin_client):
    run = EvalRun.objects.create(task="lambada", base_url="http://127.0.0.1:1")
    page = admin_client.get(reverse("admin:benchmarks_evalrun_change", args=[run.pk])).text
    assert "prefix token" not in page


def test_bits_per_byte_and_the_data_type_are_shown(admin_client):
    run = done_run("fp16", set(), task="bpb", dtype="float16, float32 states", bits_per_byte=0.61234)
    run.summary |= {"bits_per_byte_ci95": [0.6, 0.625], "note": "worth knowing"}
    run.save()
    page = admin_client.get(reverse("admin:benchmarks_evalrun_change", args=[run.pk])).text
    for words in ("0.6123 (0.6000 – 0.6250)", "float16, float32 states", "worth knowing"):
        assert words in page
    assert "float16, float32 states" in admin_client.get(reverse(RUNS)).text


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
