"""What the pages of runs and sweeps say of their figures: of which time they are, and how sure they are."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from django.urls import reverse

from benchmarks.loadgen import metrics, sweep
from benchmarks.loadgen.records import Phase
from benchmarks.models import Run
from benchmarks.storage import store_result
from tests.benchmarks.results import make_record, make_result
from tests.benchmarks.rows import finish, make_scenario, measured_run, queue

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def shown(admin_client, run: Run):
    return admin_client.get(reverse("admin:benchmarks_run_change", args=[run.pk]))


def table(answer, title: str) -> dict[str, list[str]]:
    """Of a run's page: the cells behind each row's name."""
    found = next(one for one in answer.context["tables"] if one["title"] == title)
    return {name: cells for name, *cells in found["rows"]}


def sweep_page(admin_client, series: str):
    return admin_client.get(reverse("admin:benchmarks_run_sweep", args=[series]))


def make_sweep(points: Mapping[float, Sequence[Mapping[str, float]]]) -> str:
    """A sweep whose repeats have these figures: `measured` and `full` throughput, mean `e2el`, `speed` of a user."""
    repeats = max(len(runs) for runs in points.values())
    scenario = make_scenario(sweep_option="request_rate", sweep_values=list(points), repeats=repeats)
    for run in queue(scenario):
        figures = points[run.sweep_value][run.repeat - 1]
        finish(run, requests=3, failures=0)
        run.summary["output_throughput"] = {"measured": figures["measured"], "full": figures["full"]}
        run.summary["latency_ms"]["e2el"]["mean"] = figures["e2el"]
        run.summary["speed"]["decode_tps_user"]["median"] = figures.get("speed", 10.0)
        run.save()
    return run.series


# -- a run


def test_figures_of_both_windows_stand_side_by_side_under_their_names(admin_client):
    result = make_result(requests=20, failures=0, slos={"ttft": 1000})
    result.records = [make_record(i, phase=Phase.RAMP if i < 10 else Phase.MEASURE, tokens=8) for i in range(20)]
    result.summary = metrics.summarise(result.records, slos={"ttft": 1000}, stall_ms=15)
    run = Run.objects.get(pk=store_result(result))
    answer = shown(admin_client, run)
    rows = table(answer, "Throughput")
    # Sent every tenth of a second, each takes 0.24 s: the last two of the ramp end in the measured window.
    full, measured, good = 20 / 2.14, 12 / 1.14, 10 / 1.14
    assert rows["Requests/s"] == [f"{measured:.2f}", f"{full:.2f}"]
    assert rows["Length, s"] == ["1.14", "2.14"]
    assert rows["Requests"] == ["10", "20"]
    assert rows["Output tokens/s"][1] == f"{8 * full:.2f}"
    assert rows["Output tokens/s"][0] != rows["Output tokens/s"][1]
    assert rows["Peak output tokens/s"] == ["–", f"{run.summary['peak_output_throughput']:.2f}"]
    assert rows["Requests in flight, most"] == ["3", "–"]
    assert rows["Requests in flight, mean"][0] == f"{run.summary['concurrency']['mean']:.2f}"
    assert rows["Goodput, requests/s"] == [f"{good:.2f}", "–"]
    assert rows["Stalls: gaps over 15 ms"] == ["70", "–"]
    assert f"<strong>{measured:.2f}</strong><span>requests/s, measured window</span>" in answer.text
    for words in ("Measured window", "Whole run", "2.1</strong><span>s, whole run"):
        assert words in answer.text


def test_a_run_without_a_measured_window_says_that_its_figures_are_of_the_whole(admin_client):
    run = measured_run(make_scenario())
    for name in ("request_throughput", "output_throughput"):
        run.summary[name]["measured"] = None
    run.save()
    assert "requests/s, whole run" in shown(admin_client, run).text


def test_the_timeline_shows_some_of_many_requests_and_says_so(admin_client):
    few = shown(admin_client, measured_run(make_scenario("few"), requests=30)).text
    assert 'aria-label="Timeline of the requests"' in few
    assert few.count('class="lane"') == 31
    many = shown(admin_client, measured_run(make_scenario("many"), requests=400, failures=0)).text
    assert "Timeline of the requests: 300 of 401, evenly chosen" in many
    assert "Each from its own begin: 300 of 401, evenly chosen" in many
    assert many.count('class="lane"') == 2 * 300


def test_the_lengths_of_prompts_and_answers_are_drawn(admin_client):
    text = shown(admin_client, measured_run(make_scenario(), requests=12, failures=2)).text
    for title, words in (("Length of the prompts", "32: 10"), ("Length of the answers", "8: 10")):
        assert f'aria-label="{title}"' in text
        assert f"<title>{words}</title>" in text
    assert 'aria-label="Output tokens and requests in flight"' in text
    assert 'aria-label="The server&#x27;s own figures"' in text


def test_a_run_that_never_sent_anything_has_no_empty_charts(admin_client):
    result = make_result(requests=1, failures=1)
    result.records, result.server_samples = [], []
    result.summary = metrics.summarise([])
    text = shown(admin_client, Run.objects.get(pk=store_result(result))).text
    assert "<figure" not in text


def test_only_a_run_that_is_over_has_its_status_in_the_facts(admin_client):
    waiting = queue(make_scenario())[0]
    assert 'id="run-status"' not in shown(admin_client, waiting).text  # the live part says it, and goes with the time
    assert 'id="run-status">done<' in shown(admin_client, finish(waiting)).text


def test_a_warning_of_a_comparison_names_its_run_once(admin_client):
    runs = [measured_run(make_scenario(name)) for name in ("before", "after")]
    limited = runs[1]
    limited.client_health = {"verdict": "client-limited", "reasons": ["the event loop was late"]}
    limited.save()
    text = admin_client.get(reverse("admin:benchmarks_run_compare"), {"run": [run.pk for run in runs]}).text
    assert f"<strong>{limited.key}</strong>: the client limited the load" in text


# -- a sweep


def test_the_knee_is_of_the_figures_that_are_drawn(admin_client):
    measured, full = {1: 10, 2: 20, 4: 40, 8: 41}, {1: 10, 2: 38, 4: 39, 8: 41}
    latency = {1: 100, 2: 110, 4: 130, 8: 400}
    series = make_sweep({n: [{"measured": measured[n], "full": full[n], "e2el": latency[n]}] for n in measured})
    text = sweep_page(admin_client, series).text
    assert "is at request_rate 4." in text
    assert text.count(">4 (knee)</text>") == 3  # at one load in every curve
    assert "Throughputs are of the measured window." in text


def test_points_of_the_terminal_are_of_the_same_window():
    result = make_result()
    for name in ("output_throughput", "request_throughput"):
        result.summary[name] = {"measured": 20.0, "full": 10.0}
    point = sweep.point(4.0, result)
    assert (point.output_throughput, point.request_throughput) == (20.0, 20.0)


def test_a_load_is_good_when_its_worst_repeat_is(admin_client):
    scenario = make_scenario(sweep_option="request_rate", sweep_values=[1, 2], repeats=2, slos={"ttft": 300})
    for run in queue(scenario):
        slow = (run.sweep_value, run.repeat) == (2, 2)
        finish(run, failures=0, ttft=2.0 if slow else 0.1, slos=scenario.slos)
    assert "Up to request_rate 1, 99% of the requests" in sweep_page(admin_client, run.series).text


def test_repeats_have_intervals_of_students_t(admin_client):
    latency = {1: (90, 100, 110), 2: (200, 200, 200), 4: (300, 310, 290)}
    points = {
        n: [{"measured": 10.0 * n, "full": 1.0, "e2el": e2el} for e2el in values] for n, values in latency.items()
    }
    answer = sweep_page(admin_client, make_sweep(points))
    reach = 4.303 * 10 / 3**0.5  # t of two degrees of freedom, a deviation of 10, three repeats
    rows = {row[0].removesuffix(" (knee)"): row for row in answer.context["loads"]["rows"]}
    assert rows["1"][5] == f"100.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{reach:.2f}"
    assert rows["2"][5] == "200.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}0.00"
    assert f"{100 - reach:.2f} to {100 + reach:.1f}" in answer.text  # the table of the chart
    assert 'class="error-bar"' in answer.text
    assert "intervals by Student" in answer.text


def test_a_single_run_of_each_load_has_no_interval(admin_client):
    series = make_sweep({n: [{"measured": n, "full": n, "e2el": n}] for n in (1, 2)})
    text = sweep_page(admin_client, series).text
    assert "±" not in text
    assert "error-bar" not in text


def test_the_frontier_is_of_throughput_and_the_speed_of_a_user(admin_client):
    speeds, throughputs = {1: 50, 2: 40, 4: 20, 8: 10}, {1: 100, 2: 200, 4: 150, 8: 300}
    series = make_sweep({n: [{"measured": throughputs[n], "full": 1, "e2el": 1, "speed": speeds[n]}] for n in speeds})
    text = sweep_page(admin_client, series).text
    assert len(re.findall(r'class="point beaten"', text)) == 1
    beaten: list[Any] = re.findall(r'<th scope="row">(\d+)</th>(?:<td>[^<]*</td>)*<td>beaten by another load', text)
    assert beaten == ["4"]
