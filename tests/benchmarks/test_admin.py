"""The benchmarks in the admin: what pages show, who may do what, and how many queries a list takes."""

import json
from datetime import timedelta
from http import HTTPStatus

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule

from benchmarks.actions import cancel_run, pin_baseline
from benchmarks.gating import judge
from benchmarks.models import Baseline, Dataset, GateRule, Run, Schedule, Status, Target
from benchmarks.retention import remove_records
from benchmarks.storage import load_result, store_result
from tests.benchmarks.results import make_result
from tests.benchmarks.rows import finish, make_scenario, measured_run, queue

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

RUNS = reverse("admin:benchmarks_run_changelist")
COMPARE = reverse("admin:benchmarks_run_compare")
TRENDS = reverse("admin:benchmarks_run_trends")
QUERIES = {"run": 11, "scenario": 6}


def page(run: Run, name: str = "change", *arguments: object) -> str:
    return reverse(f"admin:benchmarks_run_{name}", args=[run.pk, *arguments])


def act(client, action: str, *rows, model: str = "run"):
    data = {"action": action, "_selected_action": [row.pk for row in rows]}
    return client.post(reverse(f"admin:benchmarks_{model}_changelist"), data, follow=True)


@pytest.fixture
def staff(client):
    """A client that may see runs, and nothing else."""
    user = User.objects.create_user("sam", password="sam", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_run", content_type__app_label="benchmarks"))
    client.force_login(user)
    return client


# -- lists and forms


@pytest.mark.parametrize("model", ["schedule", "target", "dataset", "gaterule", "baseline"])
def test_lists_and_forms_load(admin_client, model):
    pin_baseline(measured_run(make_scenario()), by="ada")
    for name in ("changelist", "add"):
        assert admin_client.get(reverse(f"admin:benchmarks_{model}_{name}")).status_code == HTTPStatus.OK


@pytest.mark.parametrize("model", QUERIES)
def test_a_list_takes_as_many_queries_for_many_rows_as_for_few(admin_client, django_assert_num_queries, model):
    url = reverse(f"admin:benchmarks_{model}_changelist")

    def add(first: int, count: int) -> None:
        for number in range(first, first + count):
            scenario = make_scenario(f"number {number}")
            GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1000)
            judge(measured_run(scenario, requests=3, failures=0))

    add(0, 2)
    assert "number 1" in admin_client.get(url).text  # and Django knows its content types from now on
    with django_assert_num_queries(QUERIES[model]):
        admin_client.get(url)
    add(2, 8)
    with django_assert_num_queries(QUERIES[model]):
        assert "number 9" in admin_client.get(url).text


def test_the_list_of_runs_shows_the_figures_and_a_sparkline(admin_client):
    scenario = make_scenario(sweep_option="request_rate", sweep_values=[2])
    GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1)
    run = measured_run(scenario)
    judge(run)
    text = admin_client.get(RUNS).text
    for words in (run.key, "request_rate 2", f"{run.ttft_median:.1f} / –", f"{run.output_throughput:.1f}", "90.0%"):
        assert words in text
    assert "<svg" in text
    assert ">fail<" in "".join(text.split())


def test_a_data_set_whose_file_is_missing_is_refused_in_the_form(admin_client):
    data = {"name": "any", "kind": "custom", "parameters": "{}", "path": "gone.jsonl"}
    answer = admin_client.post(reverse("admin:benchmarks_dataset_add"), data)
    assert "is not a file in" in answer.text
    assert not Dataset.objects.exists()


def test_a_schedule_is_made_in_the_form(admin_client):
    hourly = IntervalSchedule.objects.create(every=1, period="hours")
    data = {"name": "hourly", "scenario": make_scenario().pk, "enabled": "on", "interval": hourly.pk}
    url = reverse("admin:benchmarks_schedule_add")
    refused = admin_client.post(url, {**data, "interval": ""})
    assert "must be set" in refused.text
    assert admin_client.post(url, data).status_code == HTTPStatus.FOUND
    assert Schedule.objects.get().interval == hourly


# -- what is done to scenarios and runs


def test_run_now_queues_the_runs_once(admin_client):
    scenario = make_scenario(repeats=2)
    assert "2 runs are queued" in act(admin_client, "run_now", scenario, model="scenario").text
    assert "not over yet" in act(admin_client, "run_now", scenario, model="scenario").text
    assert Run.objects.count() == 2


def test_run_now_on_the_page_of_a_scenario_leads_to_the_run(admin_client):
    scenario = make_scenario()
    url = reverse("admin:benchmarks_scenario_run", args=[scenario.pk])
    assert f'action="{url}"' in admin_client.get(reverse("admin:benchmarks_scenario_change", args=[scenario.pk])).text
    assert admin_client.get(url).status_code == HTTPStatus.METHOD_NOT_ALLOWED
    assert not Run.objects.exists()
    assert admin_client.post(url).url == page(Run.objects.get())
    assert admin_client.post(url.replace(str(scenario.pk), "999")).status_code == HTTPStatus.NOT_FOUND


def test_run_now_needs_the_token_of_the_page():
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("ada"))
    scenario = make_scenario()
    url = reverse("admin:benchmarks_scenario_run", args=[scenario.pk])
    assert client.post(url).status_code == HTTPStatus.FORBIDDEN
    assert not Run.objects.exists()


def test_a_run_is_queued_again_as_it_was(admin_client):
    run = measured_run(make_scenario())
    Target.objects.update(base_url="http://127.0.0.1:2")
    act(admin_client, "run_again", run)
    copy = Run.objects.exclude(pk=run.pk).get()
    assert admin_client.get(page(copy)).status_code == HTTPStatus.OK
    assert copy.status == Status.QUEUED
    assert copy.configuration["options"] == run.configuration["options"]
    imported = Run.objects.get(pk=store_result(make_result("imported")))
    assert "not configured here" in act(admin_client, "run_again", imported).text


def test_a_run_becomes_the_baseline(admin_client):
    run = measured_run(make_scenario())
    act(admin_client, "set_as_baseline", run)
    assert Baseline.objects.get().run == run
    assert Baseline.objects.get().set_by == "admin"


def test_notes_are_kept(admin_client):
    run = measured_run(make_scenario())
    admin_client.post(page(run), {"tags": '["quiet"]', "notes": "the fan was off"})
    run.refresh_from_db()
    assert (run.tags, run.notes) == (["quiet"], "the fan was off")


# -- one run


def test_the_page_of_a_run_shows_what_it_measured(admin_client):
    scenario = make_scenario(slos={"ttft": 105})
    GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=1)
    run = measured_run(scenario, slos=scenario.slos)
    judge(run)
    text = admin_client.get(page(run)).text
    assert f"<strong>{run.ttft_median:,.1f}</strong>" in text
    for words in ("18 of 20", "TTFT, ms", "http_5xx", "no engine is ready", "SLO 105 ms", "at most 1 ms is allowed"):
        assert words in text
    assert text.count("<figure") == text.count('<details class="chart-data"') == 13  # every chart has its table
    for name in ("vllm", "csv", "html"):
        assert page(run, "export", name) in text


def test_the_page_of_an_old_run_shows_its_figures_without_its_requests(admin_client):
    run = measured_run(make_scenario(sweep_option="request_rate", sweep_values=[2]))
    Run.objects.update(finished=timezone.now() - timedelta(days=2))
    assert remove_records(1) == 1
    text = admin_client.get(page(run)).text
    assert f"<strong>{run.ttft_median:,.1f}</strong>" in text
    assert "18 of 20" in text
    assert admin_client.get(page(run, "export", "vllm")).status_code == HTTPStatus.OK
    assert admin_client.get(reverse("admin:benchmarks_run_sweep", args=[run.series])).status_code == HTTPStatus.OK


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.FAILED])
def test_the_page_of_a_run_without_figures_says_how_it_stands(admin_client, status):
    run = queue(make_scenario())[0]
    if status == Status.FAILED:
        run.end(status, "--random-input-len: expected at least 1")
    elif status == Status.RUNNING:
        Run.objects.claim_next().beat(progress={"state": "running", "elapsed": 4.0, "requests": 20, "done": 5})
    text = admin_client.get(page(run)).text
    words = {"queued": "Queued", "running": "about 12.0 s left", "failed": "expected at least 1"}
    assert words[status] in text
    assert ("Cancel" in text) == (status != Status.FAILED)


def test_the_live_part_reloads_the_page_when_the_run_is_over(admin_client):
    run = queue(make_scenario())[0]
    assert "HX-Refresh" not in admin_client.get(page(run, "live")).headers
    cancel_run(run)
    assert admin_client.get(page(run, "live")).headers["HX-Refresh"] == "true"


def test_a_run_is_cancelled_from_its_page(admin_client):
    run = queue(make_scenario())[0]
    assert admin_client.get(page(run, "cancel")).status_code == HTTPStatus.METHOD_NOT_ALLOWED
    assert "is cancelled" in admin_client.post(page(run, "cancel"), follow=True).text
    assert "cannot be cancelled" in admin_client.post(page(run, "cancel"), follow=True).text


def test_requests_are_paged_ordered_and_filtered(admin_client):
    run = measured_run(make_scenario(), requests=60, failures=3)

    def numbers(**query: object) -> list[int]:
        rows = admin_client.get(page(run, "requests"), query).context["requests"]["table"]["rows"]
        return [int(row[0]) for row in rows]

    assert numbers() == list(range(25))
    assert numbers(page=3) == list(range(50, 61))
    assert numbers(order="e2el")[:3] == [56, 55, 54]
    assert numbers(failed=1) == [57, 58, 59]
    assert numbers(order="nonsense", page="x") == list(range(25))


def test_an_export_is_the_result_and_only_some_may_read_answers(staff):
    run = measured_run(make_scenario())
    lines = [json.loads(line) for line in staff.get(page(run, "export", "jsonl")).content.splitlines()]
    assert lines[0]["summary"] == load_result(run.pk).summary
    assert len(lines) == 22
    assert lines[-1]["text"] is None
    assert staff.get(page(run, "export", "parquet")).status_code == HTTPStatus.NOT_FOUND
    user = User.objects.get(username="sam")
    user.user_permissions.add(Permission.objects.get(codename="view_request_text"))
    again = staff.get(page(run, "export", "jsonl"))
    assert json.loads(again.content.splitlines()[-1])["text"] == "Hello"
    assert again.headers["Content-Disposition"].startswith("attachment;")


# -- several runs


def test_a_comparison_tells_what_changed_and_what_was_configured_differently(admin_client):
    before, after = make_scenario("before"), make_scenario("after")
    first = measured_run(before, requests=60, failures=0)
    second = measured_run(after, requests=60, failures=0, ttft=0.2)
    query = {"run": [first.pk, second.pk]}
    text = admin_client.get(COMPARE, query).text
    assert 'data-verdict="worse"' in text
    assert "+100.0%" in text
    assert 'data-verdict="better"' in admin_client.get(COMPARE, {**query, "baseline": second.pk}).text
    assert text.count("<figure") == 3


def test_the_action_compare_leads_to_the_page(admin_client):
    runs = [measured_run(make_scenario(name)) for name in ("a", "b")]
    answer = act(admin_client, "compare", *runs)
    assert answer.redirect_chain[0][0] == f"{COMPARE}?run={runs[0].pk}&run={runs[1].pk}"
    assert answer.status_code == HTTPStatus.OK


@pytest.mark.parametrize("query", ["", "?run=1", "?run=x&run=99", "?run=1&run=1"])
def test_a_comparison_needs_two_runs(admin_client, query):
    measured_run(make_scenario())
    answer = admin_client.get(COMPARE + query, follow=True)
    assert "needs two runs" in answer.text


def test_a_sweep_shows_its_knee_and_the_largest_load_within_the_slos(admin_client):
    scenario = make_scenario(sweep_option="request_rate", sweep_values=[1, 2, 4, 8], repeats=2, slos={"ttft": 300})
    slow = {1: 0.1, 2: 0.15, 4: 0.2, 8: 2.0}
    *runs, last = queue(scenario)
    for run in runs:
        finish(run, failures=0, ttft=slow[run.sweep_value], slos=scenario.slos)
    url = reverse("admin:benchmarks_run_sweep", args=[last.series])
    text = admin_client.get(url).text
    assert "1 run of it is not over yet" in text
    assert "Up to request_rate 4, 99% of the requests" in text
    assert text.count("<figure") == 4
    for run in runs:
        assert page(run) in text
    assert admin_client.get(reverse("admin:benchmarks_run_sweep", args=["none"])).status_code == HTTPStatus.NOT_FOUND


def test_a_trend_shows_a_figure_of_every_run_with_its_gates(admin_client):
    scenario = make_scenario("nightly")
    GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=500)
    GateRule.objects.create(scenario=scenario, metric="ttft.median", limit=10, relative=True)
    runs = [measured_run(scenario, ttft=ttft) for ttft in (0.1, 0.2)]
    pin_baseline(runs[0], by="ada")
    shown = admin_client.get(TRENDS, {"scenario": scenario.pk, "metric": "ttft.median"})
    assert [row[3] for row in shown.context["runs"]["rows"]] == [f"{run.ttft_median:,.2f}" for run in reversed(runs)]
    for words in ("gate: at most 500", "gate: at most +10 %", ">baseline<"):
        assert words in shown.text
    assert "has this figure yet" in admin_client.get(TRENDS, {"metric": "goodput"}).text


# -- permissions


def test_seeing_runs_allows_nothing_else(staff):
    scenario = make_scenario()
    run, waiting = measured_run(scenario), queue(scenario)[0]
    for url in (RUNS, page(run), page(waiting), page(run, "requests"), page(waiting, "live"), TRENDS):
        assert staff.get(url).status_code == HTTPStatus.OK
    assert "Cancel" not in staff.get(page(waiting)).text
    assert staff.post(page(waiting, "cancel")).status_code == HTTPStatus.FORBIDDEN
    assert staff.post(page(run), {"notes": "mine", "tags": "[]"}).status_code == HTTPStatus.FORBIDDEN
    for action in ("cancel", "run_again", "set_as_baseline"):
        act(staff, action, waiting)
    waiting.refresh_from_db()
    assert waiting.status == Status.QUEUED
    assert Run.objects.count() == 2
    assert not Baseline.objects.exists()
    assert staff.get(reverse("admin:benchmarks_scenario_changelist")).status_code == HTTPStatus.FORBIDDEN
    run_now = reverse("admin:benchmarks_scenario_run", args=[scenario.pk])
    user = User.objects.get(username="sam")
    for codename in ("view_scenario", "add_run"):  # one of the two is not enough
        permission = Permission.objects.get(codename=codename, content_type__app_label="benchmarks")
        user.user_permissions.set([permission])
        assert staff.post(run_now).status_code == HTTPStatus.FORBIDDEN
    assert Run.objects.count() == 2


def test_without_permission_no_page_opens(client):
    run = measured_run(make_scenario(sweep_option="request_rate", sweep_values=[1]))
    client.force_login(User.objects.create_user("pat", password="pat", is_staff=True))
    urls = [RUNS, TRENDS, f"{COMPARE}?run={run.pk}", reverse("admin:benchmarks_run_sweep", args=[run.series])]
    urls += [page(run), page(run, "live"), page(run, "requests"), page(run, "export", "csv")]
    for url in urls:
        assert client.get(url).status_code == HTTPStatus.FORBIDDEN
