import json
from dataclasses import asdict
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor


class Command(BaseCommand):
    help = "Measure how fast sessions resume from each level, what a snapshot takes, and what it costs running rows."

    def add_arguments(self, parser) -> None:
        parser.add_argument("--model", default=settings.RWKV.model, help="checkpoint (default: MODEL)")
        parser.add_argument("--count", type=int, default=100, help="sessions in each case (default 100)")
        parser.add_argument("--rows", type=int, default=8, help="rows that decode during the snapshots (default 8)")
        parser.add_argument("--output", type=Path, help="also write the figures to this file, as JSON")

    def handle(self, *, model: str, count: int, rows: int, output: Path | None, **options) -> None:
        if not model:
            raise CommandError("name a checkpoint: --model PATH, or MODEL in the environment")
        if count < 1 or rows < 1:
            raise CommandError("--count and --rows must be positive")
        migrations = MigrationExecutor(connection)
        if migrations.migration_plan(migrations.loader.graph.leaf_nodes()):
            raise CommandError("the database has no tables for this version: run `manage.py migrate` first")
        from inference.engine.backends import create_backend
        from inference.engine.state_cache import state_bytes
        from sessions.bench import SessionBench

        config = settings.RWKV
        backend = create_backend(
            name=config.engine_backend,
            checkpoint=Path(model),
            slots=count + rows,
            device=config.engine_device,
            dtype=config.engine_dtype,
        )
        size = state_bytes(backend.export_state(0))
        self.stdout.write(f"{backend.model.id}, {backend.name} on {backend.device}, states of {size / 1e6:.2f} MB")
        self.stdout.write(f"{'':>48} {'p50 ms':>9} {'p99 ms':>9} {'count':>6}")
        found = []
        for times in SessionBench(backend, parked=count, count=count).run(rows):
            found.append(times)
            self.stdout.write(f"{times.what:>48} {times.p50:9.2f} {times.p99:9.2f} {times.count:6}")
        if output:
            about = {"model": backend.model.id, "backend": backend.name, "device": backend.device, "state_bytes": size}
            output.write_text(json.dumps(about | {"milliseconds": [asdict(times) for times in found]}, indent=1) + "\n")
