import sys

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.supervisor import EX_CONFIG


class Command(BaseCommand):
    help = "Run one engine process, which serves the checkpoint that MODEL names."

    def handle(self, **options) -> None:
        if not settings.RWKV.model:
            raise CommandError("MODEL is not set: it names the checkpoint to serve", returncode=EX_CONFIG)
        from inference.worker import main  # torch: only this process loads it

        try:
            main()
        except SystemExit as stop:  # the model cannot be loaded, which a restart would not mend
            sys.exit(EX_CONFIG if stop.code else 0)
