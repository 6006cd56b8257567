"""A batch job outlives its Celery worker and its engine, and answers every line exactly once."""

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import openai
import pytest

from tests.service import Service, wait_until
from tests.service_tests.clients import ENDLESS, started

LINES = 2000
SECONDS = 80.0
OVER = ("completed", "failed", "expired", "cancelled")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    with started(tmp_path_factory.mktemp("var"), MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service:
        yield service


@pytest.fixture
def sdk(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused") as client:
        yield client


def start_batch(sdk: openai.OpenAI, bodies: list[dict]) -> Callable[[], openai.types.Batch]:
    """Start a batch on /v1/completions. The result looks at it."""
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    file = sdk.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    key = sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id
    return lambda: sdk.batches.retrieve(key)


def stored_answers(service: Service) -> set[str]:
    """The ids of the answers that are in the database."""
    with closing(sqlite3.connect(service.var_dir / "db.sqlite3")) as database:
        return {json.loads(answer)["id"] for (answer,) in database.execute("SELECT answer FROM inference_batchline")}


def kill(service: Service, name: str) -> None:
    before = service.child(name)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.child(name) not in (None, before), 30, f"there is another {name}")


def test_every_line_is_answered_once_though_worker_and_engine_are_killed(service: Service, sdk: openai.OpenAI):
    look = start_batch(sdk, [{"prompt": f"line {number}", "max_tokens": 2} for number in range(LINES)])
    wait_until(lambda: look().request_counts.completed > LINES // 10, SECONDS, "some lines are answered")
    kill(service, "worker")
    before = stored_answers(service)
    assert LINES // 10 < len(before) < LINES
    assert look().request_counts.completed == len(before)

    goal = (len(before) + LINES) // 2
    wait_until(lambda: look().request_counts.completed > goal, SECONDS, "another worker has gone on")
    kill(service, "engine")
    assert look().request_counts.completed < LINES
    wait_until(lambda: look().status in OVER, SECONDS, "the batch is over")

    batch = look()
    assert batch.status == "completed"
    assert batch.request_counts.to_dict() == {"total": LINES, "completed": LINES, "failed": 0}
    assert batch.error_file_id is None
    answers = [json.loads(line) for line in sdk.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(LINES))
    assert all(answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers)
    assert before < {answer["id"] for answer in answers}  # what was finished is not asked again


def test_a_running_job_does_not_hold_up_the_end_of_the_service_and_goes_on_after_it(
    tmp_path: Path, tiny_checkpoint: Path
):
    quick, endless = {"prompt": "quick", "max_tokens": 1}, {"prompt": "slow", "max_tokens": ENDLESS, "ignore_eos": True}
    with started(tmp_path, MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service:
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused") as sdk:
            look = start_batch(sdk, [quick, endless])
            wait_until(lambda: look().request_counts.completed == 1, SECONDS, "a line is answered")
            key = look().id
        assert service.stop() == 0
        assert "worker did not stop" not in service.output
        before = stored_answers(service)
    with (
        started(tmp_path, MODEL=str(tiny_checkpoint), SERVE_CELERY="true") as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused") as sdk,
    ):
        wait_until(lambda: sdk_stats(sdk)["running"] == 1, SECONDS, "the other line is being answered again")
        sdk.batches.cancel(key)
        wait_until(lambda: sdk.batches.retrieve(key).status == "cancelled", SECONDS, "the batch is cancelled")
        output = sdk.files.content(sdk.batches.retrieve(key).output_file_id).text
        assert {json.loads(line)["id"] for line in output.splitlines()} == before


def sdk_stats(sdk: openai.OpenAI) -> dict:
    return sdk.get("../stats", cast_to=dict)
