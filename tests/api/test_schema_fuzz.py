"""Requests made up from the OpenAPI schema: whatever is sent, the answer is one that the schema promises.

FUZZ_CASES is the number of cases for each operation; with the default there are at least WANTED in all.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from tests.service import Service

DEFAULT_CASES = 42
CASES = int(os.environ.get("FUZZ_CASES", DEFAULT_CASES))
WANTED = 2000  # in all, with the default
HI = [{"role": "user", "content": "Hi"}]

# Values that keep a valid request from being refused, or from taking long, where it has these fields.
CALM = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n": 2, "best_of": 2, "model": "rwkv7"}
# What a body cannot do without; all else in it is made up.
ESSENTIALS = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": HI},
    "/openai/v1/chat/completions": {"messages": HI},
    "/v1/chat/completions/batch": {"messages": [HI, HI]},
    "/v1/responses": {"input": "Hi"},
    "/v1/batch/completions": {"contents": ["Hi"]},
    "/v2/chat/completions": {"contents": ["Hi"]},
    "/v3/chat/completions": {"contents": ["Hi"]},
    "/big_batch/completions": {"contents": ["Hi"]},
    "/FIM/v1/batch-FIM": {"prefix": ["a"], "suffix": ["b"]},
}


@pytest.fixture(scope="module")
def api_schema(tmp_path_factory, tiny_checkpoint) -> Iterator[schemathesis.BaseSchema]:
    """Of a service whose answers are short. Bodies have no other fields than the schema's, or few would be used."""
    limits = {"MAX_NEW_TOKENS": "4", "MAX_ROWS": "8"}
    service = Service(tmp_path_factory.mktemp("fuzz"), MODEL=str(tiny_checkpoint), **limits)
    try:
        service.wait_until_healthy()
        with urllib.request.urlopen(f"{service.url}/schema/?format=json") as answer:
            described = closed(json.load(answer))
        schema = schemathesis.openapi.from_dict(described)
        schema.config.update(base_url=service.url)
        yield schema
    finally:
        service.stop()


def closed(node: Any) -> Any:
    """A schema whose objects have no fields but those it names."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {name: closed(value) for name, value in node.items()}
    if node.get("type") == "object" and "properties" in node:
        node.setdefault("additionalProperties", False)
    return node


def calmed(body: Any, path: str, complete: bool) -> Any:
    """A made-up body that asks for little; what is wrong in it stays wrong."""
    if not isinstance(body, dict):
        return body
    calm = {name: value for name, value in CALM.items() if isinstance(body.get(name), int | str)}
    if body.get("text_list"):
        calm["text_list"] = []  # the random model would go on with each text to the route's own limit
    return body | calm | (ESSENTIALS.get(path, {}) if complete else {})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_request_gets_an_answer_that_is_not_documented(api_schema, subtests):
    answers: dict[int, int] = {}
    for operation in (found.ok() for found in api_schema.get_all_operations()):

        @settings(max_examples=CASES, deadline=None, derandomize=True, database=None, suppress_health_check=HealthCheck)
        @given(case=operation.as_strategy())
        def check(case):
            case.body = calmed(case.body, case.path, complete=sum(answers.values()) % 4 > 0)
            response = case.call(timeout=60)
            answers[response.status_code] = answers.get(response.status_code, 0) + 1
            case.validate_response(response, checks=[not_a_server_error, status_code_conformance])

        with subtests.test(operation.label):
            check()
    print(f"{sum(answers.values())} cases by status: {answers}")
    assert sum(answers.values()) >= WANTED or CASES < DEFAULT_CASES
    assert answers[200] > answers[400] / 4, "too few of the requests are valid ones"
