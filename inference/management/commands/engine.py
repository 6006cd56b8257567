import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.supervisor import EX_CONFIG


class Command(BaseCommand):
    help = "Run one engine process, which serves the checkpoint that MODEL names."

    def add_arguments(self, parser) -> None:
        parser.add_argument("--model", default=settings.RWKV.model, help="checkpoint to serve instead of MODEL")
        parser.add_argument("--fallback", type=Path, help="checkpoint to serve if that one cannot be loaded")

    def handle(self, *, model: str, fallback: Path | None, **options) -> None:
        if not model:
            raise CommandError("MODEL is not set: it names the checkpoint to serve", returncode=EX_CONFIG)
        from inference.engine_process import main  # torch: only this process loads it

        try:
            main(Path(model), fallback)
        except SystemExit as stop:  # the model cannot be loaded, which a restart would not mend
            sys.exit(EX_CONFIG if stop.code else 0)
