import asyncio
import json
from argparse import ArgumentParser
from dataclasses import asdict

import aiohttp
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from benchmarks.arguments import output_file, positive, positive_number
from benchmarks.output_files import write_json
from benchmarks.soak import COMPLETE, LEFT, run_soak


class Command(BaseCommand):
    help = "Put a mixed load on the service of this machine for minutes, and watch for leaks and drift."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--minutes", type=positive_number, default=6.0, help="of load (6)")
        parser.add_argument("--clients", type=positive, default=64, help="at once (64)")
        parser.add_argument("--output", type=output_file, help="also write the samples to this JSON file")

    def handle(self, *, minutes, clients, output, **options) -> None:
        config = settings.RWKV
        if not config.listens_on_loopback_only:
            raise CommandError(f"HOST {config.host} is not a loopback address, and only such a service is loaded")
        try:
            soak = asyncio.run(
                run_soak(
                    config.base_url,
                    config.api_password,
                    clients=clients,
                    seconds=minutes * 60,
                    report=self._report,
                )
            )
        except aiohttp.ClientError as error:
            raise CommandError(f"{config.base_url}: {error}") from None
        summary = soak.summary()
        self.stdout.write(json.dumps(summary, indent=2))
        if output:
            write_json(output, {**summary, "samples": [asdict(one) for one in soak.samples]})
        if set(soak.outcomes) - {COMPLETE, LEFT}:
            raise CommandError("some requests failed")
        if not soak.idle_at_end:
            raise CommandError("the engine did not get idle: a slot was not given back")

    def _report(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
