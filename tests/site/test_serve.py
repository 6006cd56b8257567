import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from rwkvsite.env import BASE_DIR
from tests.service import STOP_SECONDS, Service, descendants, is_running, wait_until


@pytest.fixture
def start(tmp_path, tiny_checkpoint):
    started = []

    def start(**environment: str) -> Service:
        started.append(Service(tmp_path, **{"MODEL": str(tiny_checkpoint), "SERVE_CELERY": "true", **environment}))
        return started[-1]

    yield start
    for service in started:
        if service.process.poll() is None:
            service.stop()


def test_it_says_where_everything_is(service):
    wait_until(lambda: "Ready: " in service.output, 10, "serve has greeted")
    for text in (f"Ready: {service.url}", f"{service.url}/admin/", "manage.py createsuperuser"):
        assert text in service.output


def test_a_second_serve_in_the_same_folder_is_refused(service):
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(service.var_dir)}
    done = subprocess.run(
        [sys.executable, BASE_DIR / "manage.py", "serve"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == os.EX_CONFIG
    assert "another `serve` is already running" in done.stderr


@pytest.mark.parametrize("command", ["serve", "web"])
def test_a_port_in_use_is_named_in_one_line(service, tmp_path, command):
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "rwkvsite.settings", "VAR_DIR": str(tmp_path)}
    env |= {"PORT": str(service.port), "WEB_PROCESSES": "2"}
    done = subprocess.run(
        [sys.executable, BASE_DIR / "manage.py", command], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == os.EX_CONFIG
    assert done.stderr.strip() == (
        f"CommandError: PORT {service.port} on 127.0.0.1 is already in use: stop what uses it, or set PORT"
    )


def test_an_engine_that_dies_comes_back(start):
    service = start().wait_until_healthy()
    before = service.child("engine")
    assert before
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: "engine ended by SIGKILL" in service.output, 10, "serve has noticed")
    wait_until(lambda: service.child("engine") not in (None, before), 30, "there is another engine")


def test_sigterm_leaves_no_process_and_no_socket(start):
    service = start(WEB_PROCESSES="2").wait_until_healthy()
    family = descendants(service.process.pid)
    assert len(family) >= 7  # redis, engine, worker, beat, web and its two
    assert service.stop() == 0
    assert not any(map(is_running, family))
    assert not (service.var_dir / "redis.sock").exists()


def test_celery_is_stopped_before_the_web_whose_client_it_is(start):
    service = start().wait_until_healthy()
    wait_until(lambda: service.child("worker") and service.child("beat"), 30, "Celery runs")
    worker = service.child("worker")
    os.kill(worker, signal.SIGSTOP)  # its work takes long
    service.process.terminate()
    wait_until(lambda: not service.child("beat"), 30, "Celery has heard")
    with urllib.request.urlopen(f"{service.url}/health") as response:
        assert response.status == 200
    os.kill(worker, signal.SIGCONT)
    assert service.process.wait(STOP_SECONDS) == 0


def test_a_killed_serve_leaves_no_process(start):
    service = start().wait_until_healthy()
    family = descendants(service.process.pid)
    service.process.kill()
    service.process.wait()
    wait_until(lambda: not any(map(is_running, family)), 20, "every child is gone")


def test_a_model_that_cannot_be_read_ends_serve_with_one_line(start, tmp_path):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"this is no checkpoint")
    service = start(MODEL=str(broken))
    assert service.process.wait(90) == os.EX_CONFIG
    assert "broken.pth" in service.output
    assert "Traceback" not in service.output


def test_without_a_model_it_makes_a_random_one_and_says_so(start):
    service = start(MODEL="").wait_until_healthy()
    assert "RANDOM" in service.output
    assert (service.var_dir / "rwkv7-random-tiny.pth").is_file()
    with urllib.request.urlopen(f"{service.url}/v1/models") as response:
        assert json.load(response)["data"][0]["id"] == "rwkv7-random-tiny"
