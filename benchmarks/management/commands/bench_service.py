import asyncio
import os
import platform
import socket
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from benchmarks.arguments import counts, loopback_url, output_file, positive
from benchmarks.loadgen.health import CPU_PERCENT
from benchmarks.output_files import write_json
from benchmarks.process_cpu import listeners
from benchmarks.service_bench import REQUESTS_PER_CLIENT, Figures, Load, RequestFailed, default_processes, run_case

PACKAGES = ("daphne", "django", "msgspec", "redis", "torch", "aiohttp")
COLUMNS = (
    ("clients", "clients"),
    ("tokens_per_second", "tokens/s, whole"),
    ("steady_tokens_per_second", "tokens/s, steady"),
    ("steady_seconds", "steady s"),
    ("ttft_ms_p50", "TTFT p50 ms"),
    ("ttft_ms_p99", "TTFT p99 ms"),
    ("tpot_ms_p50", "TPOT p50 ms"),
    ("web_cpu_seconds_per_1000_tokens", "web CPU s/1k"),
    ("engine_cpu_seconds_per_1000_tokens", "engine CPU s/1k"),
)
LEGEND = (
    "whole: from the start of all clients to the end of the last one, with the prefill of the start and the ragged end",
    "steady: from the last client's first token to the end of the first client that was through",
)


class Command(BaseCommand):
    help = "Measure a running service on this machine with streaming clients, each asking again once it has its answer."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--base-url", type=loopback_url, default=None, help="default: HOST and PORT")
        parser.add_argument("--clients", type=counts, default=[1, 8, 64], help="cases, separated by commas (1,8,64)")
        parser.add_argument("--tokens", type=positive, default=128, help="generated per request (128)")
        parser.add_argument("--prompt-tokens", type=positive, default=36, help="per request, random (36)")
        parser.add_argument(
            "--requests-per-client",
            type=positive,
            default=REQUESTS_PER_CLIENT,
            metavar="N",
            help=f"one after the other; with more, less of a case is start and end ({REQUESTS_PER_CLIENT})",
        )
        parser.add_argument(
            "--processes",
            type=positive,
            default=default_processes(),
            help="that the clients are shared out among; 1: this one (default: a quarter of the cores)",
        )
        parser.add_argument("--output", type=output_file, help="also write the figures to this JSON file")

    def handle(self, *, base_url: str | None, output: Path | None, **options: Any) -> None:
        try:
            base_url = base_url or loopback_url(settings.RWKV.base_url)
            result = asyncio.run(self._run(base_url, **options))
        except ArgumentTypeError as error:
            raise CommandError(f"HOST: {error}") from None
        except (RequestFailed, aiohttp.ClientError) as error:
            raise CommandError(f"{base_url}: {error}") from None
        if output:
            write_json(output, result)

    async def _run(
        self,
        base_url: str,
        *,
        clients: list[int],
        tokens: int,
        prompt_tokens: int,
        requests_per_client: int,
        processes: int,
        **_options: Any,
    ) -> dict[str, Any]:
        password = settings.RWKV.api_password
        engines = await ready_engines(base_url, password)
        model = engines[0]["model"]["id"]
        web = listeners(urlsplit(base_url).port or 80)
        engine = {entry["pid"] for entry in engines if entry["host"] == socket.gethostname()}
        self.stdout.write(f"{base_url}: {model} on {engines[0]['backend']} ({engines[0]['device']})")
        self.stdout.write("  ".join(title for _, title in COLUMNS))
        cases = []
        for count in clients:
            load = Load(
                base_url=base_url,
                password=password,
                model=model,
                clients=count,
                tokens=tokens,
                prompt_tokens=prompt_tokens,
                requests_per_client=requests_per_client,
            )
            figures = await run_case(load, web=web, engine=engine, report=self.stderr.write, processes=processes)
            self.stdout.write("  ".join(_cell(figures, name).rjust(len(title)) for name, title in COLUMNS))
            if figures.client_cpu_percent > CPU_PERCENT.limited:
                percent = f"{figures.client_cpu_percent:.0f}%"
                self.stdout.write(f"  these may be the client's: one of its processes used {percent} of a core")
            cases.append(asdict(figures))
        self.stdout.write("\n".join(LEGEND))
        asked = {
            "tokens": tokens,
            "prompt_tokens": prompt_tokens,
            "requests_per_client": requests_per_client,
            "client_processes": processes,
        }
        return {**surroundings(engines), **asked, "cases": cases}


async def ready_engines(base_url: str, password: str) -> list[dict[str, Any]]:
    """The heartbeats of the engines that are ready. Raises RequestFailed if there is none."""
    headers = {"Authorization": f"Bearer {password}"} if password else {}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{base_url}/stats") as response:
        if response.status != 200:
            raise RequestFailed(f"/stats answered {response.status}: {await response.text()}")
        engines = (await response.json())["engines"]
    ready = [engine for engine in engines if engine["state"] == "ready"]
    if not ready:
        raise RequestFailed("no engine is ready")
    return ready


def surroundings(engines: list[dict[str, Any]]) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # torch, where the engine has an environment of its own
            continue
    machine = {"cpu": _cpu_model(), "cores": os.cpu_count(), "system": platform.platform()}
    engine = [{name: engine[name] for name in ("model", "backend", "device", "slots")} for engine in engines]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
        "engines": engine,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _cell(figures: Figures, name: str) -> str:
    value = getattr(figures, name)
    return "-" if value is None else str(value)
