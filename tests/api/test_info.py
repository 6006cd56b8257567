"""The routes that describe the service: /, /health, /stats, the model list and the schema."""

import json
import re
import subprocess


def test_models(api, sdk):
    answer = api.get("/v1/models")
    (model,) = answer.json["data"]
    assert answer.json["object"] == "list"
    assert model["object"] == "model"
    assert model["root"] == model["id"]
    assert (model["owned_by"], model["parent"], model["permission"]) == ("rwkv", None, [])
    assert (model["status"], answer.json["loaded"]) == ("loaded", model["id"])
    assert model["created"] > 0
    assert model["max_model_len"] > 1000
    assert "Random weights" in model["description"]
    for path in ("/v1/models/", "/openai/v1/models", "/openai/v1/models/"):
        assert api.get(path).json == answer.json
    for path in (f"/v1/models/{model['id']}", f"/v1/models/{model['id']}/"):
        assert api.get(path).json == model
    assert sdk.models.retrieve(model["id"]).id == model["id"]
    assert api.get("/v1/models/other").status == 404


def test_health_and_stats(api):
    health = api.get("/health").json
    assert (health["status"], health["engines"]) == ("ok", 1)
    stats = api.get("/stats/").json
    assert stats["slots"] >= 1
    (engine,) = stats["engines"]
    assert engine["state"] == "ready"
    assert engine["rows"] == []
    assert (engine["backend"], engine["device"], engine["dtype"]) == ("torch", "cpu", "float32")


def test_the_front_page_for_programs_and_for_people(api):
    index = api.get("/").json
    assert index["models"] == [api.get("/v1/models").json["data"][0]["id"]]
    for link in (index["docs"], index["schema"], index["health"]):
        assert api.get(link).status == 200
    page = api.get("/", Accept="text/html,*/*")
    assert page.headers["Content-Type"].startswith("text/html")
    assert index["models"][0] in page.body.decode()


def test_the_front_pages_example_works_when_pasted(api):
    page = api.get("/", Accept="text/html").body.decode()
    command = re.search(r"<pre>(.*?)</pre>", page, re.DOTALL).group(1)
    assert command.startswith(f"curl {api.url}/v1/chat/completions ")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("data: {")
    assert done.stdout.endswith("data: [DONE]\n\n")


def test_the_schema_describes_every_route(api):
    schema = json.loads(api.get("/schema/", Accept="application/vnd.oai.openapi+json").body)
    operations = {
        (method, path): operation for path, methods in schema["paths"].items() for method, operation in methods.items()
    }
    assert {
        ("get", "/"),
        ("get", "/health"),
        ("get", "/stats"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{model}"),
        ("post", "/v1/completions"),
        ("post", "/v1/chat/completions"),
        ("post", "/openai/v1/chat/completions"),
    } <= set(operations)
    assert all(operation["summary"] for operation in operations.values())
    body = operations["post", "/v1/completions"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "temperature", "logit_bias", "stream_options"} <= set(body["properties"])
    assert "text/event-stream" in operations["post", "/v1/completions"]["responses"]["200"]["content"]
