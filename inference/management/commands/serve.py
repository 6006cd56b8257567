import asyncio
import fcntl
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TextIO

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from inference.listening import CannotListen, open_sockets
from inference.supervisor import EX_CONFIG, Child, Supervisor
from rwkvsite import redis_server
from rwkvsite.env import BASE_DIR, redis_socket

POLL_SECONDS = 0.2
MANAGE = [sys.executable, str(BASE_DIR / "manage.py")]
CELERY = [sys.executable, "-m", "celery", "-A", "rwkvsite", "--quiet"]
WORKER_OPTIONS = ["--pool", "threads", "--concurrency", "4", "--without-mingle", "--without-gossip"]


class Command(BaseCommand):
    help = "Run the whole service on this machine: Redis if need be, an engine, the web, Celery worker and beat."

    def handle(self, **options) -> None:
        config = settings.RWKV
        os.chdir(BASE_DIR)  # where the children find their packages
        lock = _lock(config.var_dir)
        try:
            for sock in open_sockets(config.host, config.port, 1):
                sock.close()
            groups = [[_redis(config)]] if config.own_redis else []
        except (CannotListen, redis_server.NoRedisServer) as error:
            raise CommandError(str(error), returncode=EX_CONFIG) from None
        call_command("migrate", interactive=False, verbosity=0)
        os.environ["MODEL"] = config.model or self._random_checkpoint(config.var_dir)
        os.environ["PYTHONUNBUFFERED"] = "1"
        groups += [[Child("engine", [*MANAGE, "engine"])], [Child("web", [*MANAGE, "web"])]]
        if config.serve_celery:  # last, and so stopped first: its work under way is a client of the web
            worker = Child("worker", [*CELERY, "worker", *WORKER_OPTIONS, "--loglevel", "INFO"])
            groups.append([worker, Child("beat", [*CELERY, "beat", "--pidfile", "", "--loglevel", "INFO"])])
        with lock:
            sys.exit(asyncio.run(_supervise(groups, self._greet)))

    def _random_checkpoint(self, var_dir: Path) -> str:
        path = var_dir / "rwkv7-random-tiny.pth"
        if not path.exists():
            subprocess.run([*MANAGE, "make_checkpoint", str(path), "--size", "tiny"], check=True)
        self.stdout.write(self.style.WARNING(f"MODEL is not set: serving {path}, whose text is RANDOM."))
        return str(path)

    async def _greet(self) -> None:
        url = settings.RWKV.base_url
        while not await asyncio.to_thread(_is_healthy, f"{url}/health"):
            await asyncio.sleep(POLL_SECONDS)
        lines = [f"Ready: {url}", f"  admin  {url}/admin/", f"  docs   {url}/docs/"]
        if not await get_user_model().objects.filter(is_superuser=True).aexists():
            lines.append(f"  To make the admin's first user: {' '.join(_short(MANAGE))} createsuperuser")
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


async def _supervise(groups, greet) -> int:
    return await Supervisor(groups, prefix=True).run(when_started=greet)


def _lock(var_dir: Path) -> TextIO:
    """Hold VAR_DIR for ourselves; the kernel lets go of it however we end."""
    var_dir.mkdir(parents=True, exist_ok=True)
    lock = (var_dir / "serve.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"another `serve` is already running in VAR_DIR {var_dir}", returncode=EX_CONFIG) from None
    return lock


def _redis(config) -> Child:
    command = redis_server.command(redis_socket(config.var_dir), config.var_dir / "redis")
    return Child("redis", command, ready=lambda: redis_server.wait_until_ready(config.redis_url))


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  (always our own http URL)
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _short(command: list[str]) -> list[str]:
    """The command as one would type it in the project's folder."""
    return [os.path.relpath(part, BASE_DIR) if part.startswith(str(BASE_DIR)) else part for part in command]
