import asyncio
import socket
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from benchmarks.arguments import loopback_url, output_file, positive
from benchmarks.management.commands.bench_service import ready_engines, surroundings
from benchmarks.output_files import write_json
from benchmarks.process_cpu import listeners
from benchmarks.service_bench import REQUESTS_PER_CLIENT, Figures, Load, RequestFailed, run_case
from benchmarks.viewers import Received, logins, watching


class Command(BaseCommand):
    help = "Measure what viewers of the live operations page cost the token throughput of a service on this machine."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--base-url", type=loopback_url, default=None, help="default: HOST and PORT")
        parser.add_argument("--viewers", type=positive, default=50, help="WebSockets, each with its own login (50)")
        parser.add_argument("--clients", type=positive, default=64, help="streaming clients (64)")
        parser.add_argument("--rounds", type=positive, default=6, help="pairs of a case with and one without (6)")
        parser.add_argument("--tokens", type=positive, default=128, help="generated per request (128)")
        parser.add_argument("--prompt-tokens", type=positive, default=36, help="per request, random (36)")
        parser.add_argument("--output", type=output_file, help="also write the figures to this JSON file")

    def handle(self, *, base_url: str | None, viewers: int, output: Path | None, **options: Any) -> None:
        try:
            base_url = base_url or loopback_url(settings.RWKV.base_url)
            with logins(viewers) as session_keys:
                result = asyncio.run(self._run(base_url, session_keys, **options))
        except ArgumentTypeError as error:
            raise CommandError(f"HOST: {error}") from None
        except (RequestFailed, aiohttp.ClientError, TimeoutError) as error:
            raise CommandError(f"{base_url}: {error}") from None
        if output:
            write_json(output, result)

    async def _run(
        self,
        base_url: str,
        session_keys: list[str],
        *,
        clients: int,
        rounds: int,
        tokens: int,
        prompt_tokens: int,
        **_options: Any,
    ) -> dict[str, Any]:
        password = settings.RWKV.api_password
        engines = await ready_engines(base_url, password)
        load = Load(
            base_url=base_url,
            password=password,
            model=engines[0]["model"]["id"],
            clients=clients,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
        )
        processes = {
            "web": listeners(urlsplit(base_url).port or 80),
            "engine": {engine["pid"] for engine in engines if engine["host"] == socket.gethostname()},
        }
        self.stdout.write(f"{base_url}: {clients} clients, without and with {len(session_keys)} viewers")
        self.stdout.write("      tokens/s without and with, change    web CPU s per 1k tokens")
        pairs, received = [], Received()
        for number in range(rounds):
            order = (False, True) if number % 2 == 0 else (True, False)  # drifts of the machine fall on both alike
            figures = {}
            for watched in order:
                keys = session_keys if watched else []
                figures[watched] = await self._measure(load, keys, received, **processes)
            pairs.append(_pair(figures[False], figures[True]))
            self.stdout.write(_line(pairs[-1]))
        middle = {name: median(pair[name] for pair in pairs) for name in pairs[0]}
        self.stdout.write(f"{_line(middle)}  medians, each of its column")
        self.stdout.write(f"{received.frames} frames, {received.bytes / 1e6:.1f} MB to all viewers")
        return {
            **surroundings(engines),
            "viewers": len(session_keys),
            "clients": clients,
            "tokens": tokens,
            "prompt_tokens": prompt_tokens,
            "requests_per_client": REQUESTS_PER_CLIENT,
            "pairs": pairs,
            "medians": middle,
            "received": asdict(received),
        }

    async def _measure(
        self, load: Load, session_keys: list[str], total: Received, *, web: set[int], engine: set[int]
    ) -> Figures:
        async with watching(load.base_url, session_keys) as received:
            figures = await run_case(load, web=web, engine=engine, report=self.stderr.write)
        total.frames += received.frames
        total.bytes += received.bytes
        return figures


def _pair(without: Figures, watched: Figures) -> dict[str, float]:
    return {
        "without": without.tokens_per_second,
        "with": watched.tokens_per_second,
        "change": round(watched.tokens_per_second / without.tokens_per_second - 1, 4),
        "web_cpu_without": without.web_cpu_seconds_per_1000_tokens or 0.0,
        "web_cpu_with": watched.web_cpu_seconds_per_1000_tokens or 0.0,
    }


def _line(pair: dict[str, float]) -> str:
    rates = f"{pair['without']:10.1f} {pair['with']:10.1f} {pair['change']:+8.1%}"
    return f"{rates} {pair['web_cpu_without']:12.3f} {pair['web_cpu_with']:8.3f}"
