"""The page of one run."""

from collections import defaultdict
from typing import Any

from django.db.models import Count
from django.urls import reverse

from benchmarks.loadgen import by_window
from benchmarks.loadgen.figures import LATENCIES, SPEEDS
from benchmarks.models import Run
from benchmarks.pages import requests, run_charts
from benchmarks.pages.words import load_of, number, pretty, seconds, share
from benchmarks.storage import load_result
from benchmarks.summaries import TITLES

# Charts are drawn from so many requests at most, evenly chosen; figures are always from all of them.
DRAWN_REQUESTS = 2000
SHOWN_STATISTICS = ("count", "mean", "median", "std", "min", "max", "p90", "p95", "p99", "p99.9")
SPARKLINE_RUNS = 20
SAMPLE_ERRORS = 5

Table = dict[str, Any]  # title, headers and rows of unfold's table


def context(run: Run) -> dict[str, Any]:
    """For templates/admin/benchmarks/run/page.html."""
    measured = bool(run.summary)
    return {
        "run": run,
        "facts": _facts(run),
        "links": _links(run),
        "gates": _gates(run),
        "cards": _cards(run) if measured else [],
        "tables": [
            _windows(run.summary),
            _statistics("Latencies", run.summary.get("latency_ms") or {}, LATENCIES, "ms"),
            _statistics("Speeds", run.summary.get("speed") or {}, SPEEDS, "tokens/s"),
            _lengths(run.summary),
        ],
        **(_charts(run) if measured else {}),
        "failures": _failures(run),
        "requests": requests.page(run, {}) if measured else None,
        "health": _health(run.client_health),
        "configuration": pretty(run.configuration),
        "environment": pretty(run.environment),
        "server": pretty(run.server),
        "exports": _exports(run) if measured else [],
    }


def recent_medians() -> dict[int, list[float | None]]:
    """TTFT medians of the last runs of each scenario, the oldest first, in one query."""
    newest = Run.objects.measured().exclude(scenario=None).order_by("-pk").values_list("scenario", "ttft_median")
    found: dict[int, list[float | None]] = defaultdict(list)
    for scenario, median in newest[: 20 * SPARKLINE_RUNS]:
        if len(found[scenario]) < SPARKLINE_RUNS:
            found[scenario].insert(0, median)
    return found


def _facts(run: Run) -> list[tuple[str, Any]]:
    facts = [
        ("Scenario", run.scenario or run.configuration.get("scenario", "")),
        ("Target", run.target or run.configuration.get("target", "")),
        ("Load", load_of(run)),
        ("Started by", run.get_origin_display()),
        ("Started", run.started and f"{run.started:%Y-%m-%d %H:%M:%S} UTC"),
        ("Took", "" if run.is_open else seconds(run.seconds)),  # the live part counts on
        ("Host", run.host),
        ("Revision", run.environment.get("revision", "")),
    ]
    return [(name, value) for name, value in facts if value]


def _links(run: Run) -> list[tuple[str, str]]:
    links = []
    if run.is_of_sweep:
        links.append(("Sweep", reverse("admin:benchmarks_run_sweep", args=[run.series])))
    if run.scenario_id:
        links.append(("Trend", f"{reverse('admin:benchmarks_run_trends')}?scenario={run.scenario_id}"))
        baseline = getattr(run.scenario, "baseline", None)
        if baseline and baseline.run_id != run.pk:
            query = f"?run={baseline.run_id}&run={run.pk}"
            links.append(("Compare with the baseline", reverse("admin:benchmarks_run_compare") + query))
    return links


def _gates(run: Run) -> Table:
    results = run.gate_results.select_related("rule")
    return {
        "headers": ["Gate", "Outcome", "Why"],
        "rows": [[str(result.rule), result.outcome, result.words] for result in results],
    }


def _cards(run: Run) -> list[tuple[str, str, str]]:
    """(name, figure, unit)."""
    counts, concurrency = run.summary.get("requests") or {}, run.summary.get("concurrency") or {}
    peak = run.summary.get("peak_output_throughput")
    cards = [
        ("Requests", f"{number(counts.get('completed'))} of {number(counts.get('total'))}", "completed"),
        ("Success rate", share(run.success_rate), ""),
        ("Request throughput", number(run.request_throughput, 2), f"requests/s, {_window(run, 'request_throughput')}"),
        ("Output throughput", number(run.output_throughput), f"tokens/s, {_window(run, 'output_throughput')}"),
        ("Peak output", number(peak), "tokens in one second"),
        ("In flight", number(concurrency.get("mean")), f"requests; {number(concurrency.get('max'))} at most"),
        ("TTFT, median", number(run.ttft_median), "ms"),
        ("TPOT, median", number(run.tpot_median), "ms"),
        ("E2EL, median", number(run.e2el_median), "ms"),
        ("Duration", number(run.duration), "s, whole run"),
    ]
    if run.goodput is not None:
        cards.insert(2, ("Goodput", share(run.goodput), "of requests keep every SLO"))
    return cards


def _window(run: Run, name: str) -> str:
    return by_window.window_of(run.summary, name)


def _windows(summary: dict[str, Any]) -> Table:
    rows = [[name, number(measured, 2), number(whole, 2)] for name, measured, whole in by_window.rows(summary)]
    return {
        "title": "Throughput",
        "headers": ["Figure", by_window.MEASURED.capitalize(), by_window.WHOLE.capitalize()],
        "rows": rows,
        "note": "The whole run is without its warm-up; the measured window is without ramp and drain too. Lists, gates,"
        " sweeps and comparisons have the measured window's figures, vLLM's and api_bench_tools' exports the whole"
        " run's.",
    }


def _statistics(name: str, groups: dict[str, Any], order: tuple[str, ...], unit: str) -> Table:
    """A row for each metric that was measured. A percentile that too few samples support stays empty."""
    present = [metric for metric in order if (groups.get(metric) or {}).get("count")]
    rows = [
        [f"{TITLES[metric]}, {unit}", *(number(groups[metric].get(one), 2) for one in SHOWN_STATISTICS)]
        for metric in present
    ]
    return {"title": name, "headers": ["Metric", *SHOWN_STATISTICS], "rows": rows}


def _lengths(summary: dict[str, Any]) -> Table:
    rows = []
    for name, key, total in (("Prompt", "input_length", "input"), ("Output", "output_length", "output")):
        stats = summary.get(key) or {}
        sources = ", ".join((summary.get(f"{total}_token_sources") or {}).keys())
        figures = [number(stats.get(statistic), 1) for statistic in ("mean", "median", "min", "max")]
        if stats.get("count"):
            rows.append([f"{name}, tokens", number((summary.get("tokens") or {}).get(total)), *figures, sources])
    return {
        "title": "Lengths",
        "headers": ["Length", "all", "mean", "median", "min", "max", "counted by"],
        "rows": rows,
    }


def _charts(run: Run) -> dict[str, Any]:
    there = run.records.count()
    every = max(1, -(-there // DRAWN_REQUESTS))
    result = load_result(run.pk, every=every)
    window = run.summary.get("window")
    slos = run.configuration.get("slos") or result.profile.get("goodput") or {}
    return {
        "distributions": run_charts.distributions(result, slos),
        "tokens": run_charts.tokens(result),
        "over_time": [
            *run_charts.over_time(list(run.buckets.values()), window),
            *run_charts.server(result.server_samples, window),
        ],
        "timeline": run_charts.timeline(result, of=there),
        "drawn": f"Drawn from {len(result.records):,} of {there:,} requests, evenly chosen." if every > 1 else "",
    }


def _failures(run: Run) -> dict[str, Any] | None:
    counts: dict[str, int] = run.summary.get("errors") or {}
    if not counts:
        return None
    texts = (
        run.records.exclude(error="").values_list("error", "error_text").annotate(Count("pk")).order_by("-pk__count")
    )
    rows = [[error, count, text or "–"] for error, text, count in texts[:SAMPLE_ERRORS]]
    return {
        "chart": run_charts.errors(counts),
        "texts": {"headers": ["Cause", "Requests", "In the words of the server or the client"], "rows": rows},
    }


def _health(health: dict[str, Any]) -> Table:
    names = {
        "send_lag_p99_ms": "Requests were sent late by, p99, ms",
        "loop_lag_p99_ms": "The client's event loop was late by, p99, ms",
        "achieved_send_ratio": "Share of the offered rate that was sent",
        "cpu_percent_max": "Busiest worker's CPU, %",
    }
    rows = [[words, number(health[key], 3)] for key, words in names.items() if health.get(key) is not None]
    return {"headers": ["Client", ""], "rows": rows}


def _exports(run: Run) -> list[tuple[str, str]]:
    from benchmarks.loadgen import exports  # its spreadsheets take a second to import, which other pages need not pay

    return [(name, reverse("admin:benchmarks_run_export", args=[run.pk, name])) for name in exports.FORMATS]
