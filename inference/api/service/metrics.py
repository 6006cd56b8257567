"""The engines' heartbeats as figures in Prometheus' text format."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.bus.messages import EngineStatus

GAUGES = {
    "running": "Rows that have a slot",
    "waiting": "Rows that wait for a slot",
    "slots": "Rows that can run at once",
    "prompt_tokens_per_second": "Prompt tokens per second, between the last heartbeats",
    "generated_tokens_per_second": "New tokens per second, between the last heartbeats",
    "step_ms": "Milliseconds per step, between the last heartbeats",
    "memory_free": "Free bytes of the device, or of the machine of an engine on a CPU; 0 if not known",
    "memory_total": "Bytes of the device, or of the machine of an engine on a CPU; 0 if not known",
    "process_memory": "Bytes of the machine's memory that the engine has taken; 0 if not known",
}
COUNTERS = {
    "steps": "Steps since the engine started",
    "prompt_tokens": "Prompt tokens since the engine started",
    "generated_tokens": "New tokens since the engine started",
}
LABELS = ["engine", "model"]


def engine_metrics(engines: Sequence[EngineStatus]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engines))
    return generate_latest(registry)


class _EngineCollector(Collector):
    def __init__(self, engines: Sequence[EngineStatus]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        for names, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, help_text in names.items():
                metric = family(f"rwkv_engine_{name}", help_text, labels=LABELS)
                for engine in self._engines:
                    metric.add_metric([engine.engine, engine.model.id if engine.model else ""], getattr(engine, name))
                yield metric
