"""What engines say of memory."""

import os
import subprocess
import sys

from inference.engine.engine import Engine
from inference.engine.memory import host_memory
from inference.heartbeat import Heartbeat
from rwkvsite.env import BASE_DIR
from tests.engine.counting_backend import CountingBackend

GROWTH = 50_000_000  # bytes


def test_the_machines_memory_is_what_it_has():
    memory = host_memory()
    assert 0 < memory.free < memory.total
    assert memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_this_process_takes_grows_with_it():
    """In a process of its own: what other tests left behind in this one may be freed at any time."""
    grows = f"""
from inference.engine.memory import process_memory
before = process_memory()
ballast = b"x" * {2 * GROWTH}
print(process_memory() - before)
"""
    process = subprocess.run([sys.executable, "-c", grows], cwd=BASE_DIR, capture_output=True, text=True, check=True)
    assert GROWTH < int(process.stdout) < 3 * GROWTH


def test_an_engine_that_loads_knows_its_process_and_then_its_device_too():
    heartbeat, backend = Heartbeat("e"), CountingBackend(slots=2)
    loading = heartbeat.now()
    assert loading.process_memory > 0 and (loading.memory_free, loading.memory_total) == (0, 0)
    heartbeat.use(Engine(backend, step_tokens=4), backend, 4)
    ready = heartbeat.now()
    assert (ready.memory_free, ready.memory_total) == backend.memory()
