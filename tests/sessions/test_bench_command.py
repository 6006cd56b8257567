"""`manage.py bench_sessions`, as an operator runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rwkvsite.env import BASE_DIR


def manage(var_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(var_dir), "DATABASE_URL": "", "REDIS_URL": ""}
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=BASE_DIR, env={**os.environ, **own}, capture_output=True, text=True, check=False)


def test_its_figures_and_a_database_that_is_not_ready(tmp_path: Path, tiny_checkpoint: Path) -> None:
    output = tmp_path / "figures.json"
    bench = ["bench_sessions", "--model", str(tiny_checkpoint), "--count", "3", "--rows", "2", "--output", str(output)]
    refused = manage(tmp_path, *bench)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "CommandError: the database has no tables for this version: run `manage.py migrate` first"
    )

    assert manage(tmp_path, "migrate", "--verbosity", "0").returncode == 0
    done = manage(tmp_path, *bench)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())["milliseconds"]
    assert {one["what"]: one["count"] for one in found} == {
        "first token without a session": 3,
        "first token, state in L1": 3,
        "first token, state in L2": 3,
        "first token, state in the database": 3,
        "writing a snapshot": 3,
        "step of 2 rows": 3,
        "step of 2 rows, a state saved in each": 3,
    }
    assert all(0 < one["p50"] <= one["p99"] for one in found)
    assert all(one["what"] in done.stdout for one in found)
