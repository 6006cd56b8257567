"""The cost benchmark measures its own capture; its figures are for people, so only their meaning is looked at here."""

import json

from benchmarks.loadgen import cost


def test_a_small_measurement_by_two_workers() -> None:
    result = cost.measure([6], seconds=1.5, interval=0.05, workers=2)
    json.dumps(result, allow_nan=False)
    (case,) = result["cases"]
    assert (case["streams"], case["failed"]) == (6, 0)
    assert case["events_per_second"]["asked"] == 120
    assert 0 < case["events"] <= 6 * 30, "each stream has thirty"
    assert 0 < case["events_per_second"]["seen"] < 240
    assert case["added_latency_ms"]["count"] == case["events"]
    assert case["added_latency_ms"]["min"] > 0, "seen only after it was written"
    assert case["events_per_core_second"] is None or case["events_per_core_second"] > 0
    assert case["verdict"] in ("ok", "warn", "client-limited")
