"""Inputs of batches."""

import json
from typing import Any

ENDPOINT = "/v1/completions"


def line(custom_id: str, url: str = ENDPOINT, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"prompt": "a", "max_tokens": 2, **body}}


def jsonl(*requests: Any) -> bytes:
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)
