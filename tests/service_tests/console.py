"""The console of a running service as a person uses it, over HTTP, and the rows of its database as they lie there."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlencode

from rwkvsite.env import BASE_DIR
from tests.service import Service

USER, PASSWORD = "bencher", "correct horse battery staple"
USER_AND_ROWS = """
import json, sys
from django.contrib.auth.models import User
from django_celery_beat.models import IntervalSchedule
from benchmarks.models import Scenario, Target
wanted = json.loads(sys.stdin.read())
User.objects.create_superuser(wanted["user"], password=wanted["password"])
IntervalSchedule.objects.create(pk=wanted["interval"], every=2, period="seconds")
for name, row in wanted["scenarios"].items():
    target = Target.objects.create(name=name, **row.pop("target"))
    scenario = Scenario(name=name, target=target, **row)
    scenario.full_clean()
    scenario.save()
"""
INTERVAL = 1000  # primary key of the interval of a few seconds
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


def command(service: Service, *words: str, given: str = "") -> str:
    """What a management command prints, run beside the service with the same database."""
    own = {"DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir), "REDIS_URL": ""}
    done = subprocess.run(
        [sys.executable, str(BASE_DIR / "manage.py"), *words],
        env={**os.environ, **own},
        input=given,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Console:
    """Logged in. `scenarios` are fields by name, with those of a target of its own in `target`."""

    def __init__(self, service: Service, scenarios: dict[str, Any]) -> None:
        wanted = {"user": USER, "password": PASSWORD, "interval": INTERVAL, "scenarios": scenarios}
        command(service, "shell", "--no-imports", "-c", USER_AND_ROWS, given=json.dumps(wanted))
        self._service = service
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        url, _ = self.post("/admin/login/", username=USER, password=PASSWORD, next="/admin/")
        assert url.endswith("/admin/"), url

    def get(self, path: str) -> bytes:
        with self._opener.open(f"{self._service.url}{path}", timeout=60) as response:
            return response.read()

    def post(self, path: str, page: str = "", **fields: object) -> tuple[str, str]:
        """Send the form that `page`, or the path itself, shows. Returns where that led to, and what is there."""
        token = TOKEN.search(self.get(page or path).decode())
        assert token, f"{page or path} has no form"
        data = urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        with self._opener.open(f"{self._service.url}{path}", data, timeout=60) as response:
            return response.url, response.read().decode()

    def run_now(self, scenario: str) -> int:
        """Press the button of the scenario's page. Returns the primary key of the run."""
        page = f"/admin/benchmarks/scenario/{self.scenario(scenario)}/change/"
        [action] = re.findall(r'action="(/admin/benchmarks/scenario/\d+/run/)"', self.get(page).decode())
        url, _ = self.post(action, page)
        found = re.search(r"/admin/benchmarks/run/(\d+)/change/", url)
        assert found, f"led to {url}"
        return int(found[1])

    def schedule_once(self, scenario: str, name: str) -> None:
        """Have Celery beat start the scenario in a few seconds, through the form of a schedule."""
        fields = {"name": name, "scenario": self.scenario(scenario), "interval": INTERVAL}
        url, text = self.post("/admin/benchmarks/schedule/add/", **fields, enabled="on", one_off="on")
        assert url.endswith("/schedule/"), text

    def cancel(self, run: int) -> None:
        self.post(f"/admin/benchmarks/run/{run}/cancel/", f"/admin/benchmarks/run/{run}/change/")

    def page(self, run: int) -> str:
        return self.get(f"/admin/benchmarks/run/{run}/change/").decode()

    def export(self, run: int, name: str) -> bytes:
        return self.get(f"/admin/benchmarks/run/{run}/export/{name}/")

    # -- the database

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self._service.var_dir / "db.sqlite3")) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(query, values)]

    def scenario(self, name: str) -> int:
        return self.rows("SELECT id FROM benchmarks_scenario WHERE name = ?", name)[0]["id"]

    def run(self, pk: int) -> dict[str, Any]:
        return self.rows("SELECT * FROM benchmarks_run WHERE id = ?", pk)[0]

    def runs_of(self, scenario: str, origin: str) -> list[int]:
        query = "SELECT id FROM benchmarks_run WHERE scenario_id = ? AND origin = ? ORDER BY id"
        return [row["id"] for row in self.rows(query, self.scenario(scenario), origin)]

    def records(self, run: int) -> list[dict[str, Any]]:
        """The requests of a run, without the warm-up."""
        query = "SELECT * FROM benchmarks_requestrecord WHERE run_id = ? AND phase <> 'warmup' ORDER BY id"
        return self.rows(query, run)
