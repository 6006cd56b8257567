"""No value of any field breaks a route: it is used, ignored, or refused with a 400."""

import pytest

from inference.api.native.batch import BatchBody
from inference.api.openai.chat import ChatBody
from inference.api.openai.completions import CompletionBody

JUNK = [None, True, -1, 0, 2**80, 1e300, float("nan"), float("-inf"), "", "\ud800", [], [[]], [None], {}, {"": [{}]}]


@pytest.mark.parametrize(
    ("path", "schema", "body"),
    [
        ("/v1/completions", CompletionBody, {"prompt": "a"}),
        ("/v1/chat/completions", ChatBody, {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/chat/completions", BatchBody, {"contents": ["a"]}),
    ],
)
def test_junk_in_any_field(api, path, schema, body):
    body = {"max_tokens": 1, **body}
    for name in schema.__struct_fields__:
        for value in JUNK:
            if (name, value) != ("max_tokens", None):  # whose default is long
                answer = api.post(path, body | {name: value})
                assert answer.status in (200, 400, 404), (name, value, answer.body)
    assert api.get("/health").status == 200
