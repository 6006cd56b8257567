import asyncio
import sys
from socket import socket

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.listening import CannotListen, open_sockets
from inference.supervisor import EX_CONFIG, Child, Supervisor


class Command(BaseCommand):
    help = "Run the web processes (WEB_PROCESSES of them) on HOST and PORT."

    def handle(self, **options) -> None:
        config = settings.RWKV
        try:
            sockets = open_sockets(config.host, config.port, config.web_processes)
        except CannotListen as error:
            raise CommandError(str(error), returncode=EX_CONFIG) from None
        children = [
            Child(
                name=f"web process {number}",
                command=[sys.executable, "-m", "rwkvsite.daphne", str(sock.fileno())],
                pass_fds=(sock.fileno(),),
            )
            for number, sock in enumerate(sockets, start=1)
        ]
        sys.exit(asyncio.run(_run(children, sockets)))


async def _run(children: list[Child], sockets: list[socket]) -> int:
    def refuse_clients() -> None:
        for sock in sockets:
            sock.close()

    return await Supervisor([children], prefix=False).run(when_stopping=refuse_clients)
