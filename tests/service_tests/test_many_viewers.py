"""50 people watch the operations page while 64 clients stream, by way of the benchmark that measures what it costs."""

import json
import os
import subprocess
import sys
import time

import msgspec
import redis

from inference.bus import keys
from inference.bus.messages import Order
from inference.pages.operations_feed import LOOK_SECONDS
from rwkvsite.env import BASE_DIR

VIEWERS, CLIENTS = 50, 64


def test_many_viewers_are_served_and_cost_the_looks_of_one(service, tmp_path):
    output = tmp_path / "figures.json"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    options = [f"--base-url={service.url}", f"--viewers={VIEWERS}", f"--clients={CLIENTS}", "--rounds=1", "--tokens=8"]
    command = [sys.executable, str(BASE_DIR / "manage.py"), "bench_viewers", *options, f"--output={output}"]
    with redis.Redis.from_url(service.redis_url) as connection, connection.pubsub() as orders:
        orders.subscribe(keys.ORDERS)
        assert orders.get_message(timeout=10)["type"] == "subscribe"
        begun = time.monotonic()
        subprocess.run(command, env=environment, check=True, timeout=100)
        seconds = time.monotonic() - begun
        looks = list(iter(lambda: orders.get_message(timeout=1.0), None))
    figures = json.loads(output.read_text())
    assert figures["received"]["frames"] >= 2 * VIEWERS
    assert figures["pairs"][0]["with"] > 0
    actions = [msgspec.msgpack.decode(look["data"], type=Order).action for look in looks]
    assert set(actions) == {"list"}
    assert len(actions) <= seconds / LOOK_SECONDS + 1  # and not 50 times as many


def test_nothing_is_left_of_the_viewers(service):
    """The benchmark's user and sessions are gone again."""
    script = "from django.contrib.auth.models import User; print(*User.objects.filter(username__contains='viewer'))"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    command = [sys.executable, str(BASE_DIR / "manage.py"), "shell", "--no-imports", "-c", script]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip() == ""
