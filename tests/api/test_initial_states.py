"""/v1/state/upload, list and delete, and requests that begin with an uploaded state."""

import io
import re
import uuid
from pathlib import Path

import pytest
import torch
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile

from inference.bus.messages import Sampling
from inference.engine.backend import Chunk, StepPlan
from inference.engine.torch_backend import TorchBackend
from inference.models import ApiKey
from inference.text.tokenizer import get_tokenizer
from tests.api.test_auth import bearer

UPLOAD, LIST, DELETE = (f"/v1/state/{name}" for name in ("upload", "list", "delete"))
TOKENS = 6
GREEDY = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
NATIVE = GREEDY | {"stop_tokens": []}


def pth(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def tuned(layers: int = 2, heads: int = 2) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(1)
    return {f"blocks.{layer}.att.time_state": torch.randn(heads, 64, 64, generator=noise) for layer in range(layers)}


def upload(api, content: bytes, name: str = "my tune.pth", **headers: str):
    border = uuid.uuid4().hex
    head = f'--{border}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{border}--\r\n".encode()
    return api.post(UPLOAD, body, Content_Type=f"multipart/form-data; boundary={border}", **headers)


@pytest.fixture(scope="module")
def backend(tiny_checkpoint: Path) -> TorchBackend:
    return TorchBackend(tiny_checkpoint, slots=1)


@pytest.fixture
def tuned_id(api) -> str:
    return upload(api, pth(tuned())).reply["state_id"]


def continued(backend: TorchBackend, text: str, tensors: dict[str, torch.Tensor]) -> str:
    """The greedy text behind a prompt that begins with the tuned state, worked out on the back end itself."""
    backend.open_slot(0, Sampling(temperature=0.0), [], [], [])
    zero = backend.export_state(0)
    backend.import_state(0, zero | {"wkv": torch.stack(list(tensors.values()))})
    prompt = Chunk(0, get_tokenizer().encode(text), sample=True)
    tokens = [backend.launch(StepPlan(chunks=[prompt])).result().tokens[0]]
    while len(tokens) < TOKENS:
        tokens.append(backend.launch(StepPlan(decode=[0])).result().tokens[0])
    return get_tokenizer().decode(tokens)


def completion(api, prompt: str, **more) -> str:
    headers = {name: more.pop(name) for name in list(more) if name.startswith("X_")}
    return api.post("/v1/completions", {"prompt": prompt, **GREEDY} | more, **headers).reply["choices"][0]["text"]


def said(answer) -> str:
    return answer.reply["choices"][0]["message"]["content"]


# -- what a request begins with -----------------------------------------------------------------


def test_every_kind_of_request_begins_with_the_state(api, backend, tuned_id):
    expected = continued(backend, "Hello", tuned())
    assert completion(api, "Hello") != expected
    for _ in range(2):  # the second time the engine has it in memory
        assert completion(api, "Hello", state_id=tuned_id) == expected
    assert completion(api, "Hello", X_RWKV_State_Id=tuned_id) == expected
    assert completion(api, "Hello", X_State_Id=tuned_id) == expected
    assert completion(api, "Hello") != expected, "the zero state stays what it is"
    native = api.post("/v1/chat/completions", {"contents": ["Hello"], "state_id": tuned_id, **NATIVE})
    assert said(native) == expected


@pytest.mark.parametrize("cached", [True, False])
def test_a_chat_with_a_state_has_no_think_prefix(api, backend, tuned_id, cached):
    body = {"messages": [{"role": "user", "content": "Hi"}], "state_id": tuned_id, "use_prefix_cache": cached}
    answer = api.post("/openai/v1/chat/completions", body | NATIVE)
    assert said(answer) == continued(backend, "User: Hi\n\nAssistant:", tuned())


def test_long_prompts_behind_a_state_share_their_beginning(api, backend, tuned_id):
    shared = " ".join(f"word{number}" for number in range(200))
    for ending, cached in ((" and dogs", 0), (" and cats", 256)):
        answer = api.post("/v1/completions", {"prompt": shared + ending, "state_id": tuned_id, **GREEDY}).reply
        assert answer["choices"][0]["text"] == continued(backend, shared + ending, tuned())
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_whole_state_goes_on_exactly_where_it_was(api, backend):
    fed, pending = get_tokenizer().encode("The rivers run to the")[:-1], get_tokenizer().encode(" the")
    backend.open_slot(0, Sampling(), [], [], [])
    backend.launch(StepPlan(chunks=[Chunk(0, fed, sample=False)]))
    content = dict(backend.export_state(0)) | {"pending_ids": torch.tensor(pending)}
    state_id = upload(api, pth(content), name="river.pth").reply["state_id"]
    assert re.fullmatch(r"river-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", state_id)
    for _ in range(2):
        assert completion(api, " sea", state_id=state_id) == completion(api, "The rivers run to the sea")


def test_a_session_begins_with_the_state_and_goes_on_without_naming_it(api, backend, tuned_id):
    def turn(text: str, **more):
        return api.post("/state/chat/completions", {"contents": [text], "session_id": "tuned", **NATIVE} | more)

    first = said(turn("Hello", state_id=tuned_id))
    assert first == continued(backend, "Hello", tuned())
    second = said(turn("More"))
    assert second == said(api.post("/multi_state/chat/completions", branch_body("tuned branch", tuned_id, first)))
    other = upload(api, pth(tuned())).reply["state_id"]
    answer = turn("Again", state_id=other)
    assert (answer.status, answer.json) == (400, {"error": f"state_id: session tuned did not begin with {other}"})
    answer = api.post(DELETE, {"state_id": tuned_id})
    assert (answer.status, "delete them first" in answer.json["error"]) == (409, True)
    for key in ("tuned", "tuned branch"):
        assert api.post("/state/delete", {"session_id": key, "delete_prefix": True}).status == 200
    assert api.post(DELETE, {"state_id": tuned_id}).reply == {"state_id": tuned_id, "deleted": True}


def branch_body(key: str, state_id: str, reply: str) -> dict:
    """A first branch that is fed what a session was in two turns."""
    prompt = f"Hello{reply}\n\nMore"
    return {"contents": [prompt], "session_id": key, "dialogue_idx": 0, "state_id": state_id, **NATIVE}


# -- what is kept -------------------------------------------------------------------------------


def test_states_are_described_listed_and_deleted(api):
    content = pth(tuned())
    described = upload(api, content).reply
    assert described == {
        "object": "rwkv.state",
        "state_id": described["state_id"],
        "filename": "my tune.pth",
        "size_bytes": len(content),
        "tensor_count": 2,
        "created": described["created"],
        "model": described["model"],
    }
    assert described["state_id"].startswith("my_tune-")
    for listed in (api.get(LIST).reply, api.post(LIST, {}).reply):
        assert listed["data"][0] == described
    gone = {"state_id": described["state_id"], "deleted": True}
    assert api.send("DELETE", DELETE, {"state_id": described["state_id"]}).reply == gone
    again = api.post(DELETE, {"state_id": described["state_id"]})
    assert (again.status, again.json) == (404, gone | {"deleted": False})
    assert described not in api.get(LIST).reply["data"]


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        ({"state_id": "none"}, {}, "uploaded state not found: none"),
        ({}, {"X_RWKV_State_Id": "none"}, "uploaded state not found: none"),
        ({"state_id": "a"}, {"X_RWKV_State_Id": "b"}, "state_id: the body and X-RWKV-State-Id differ"),
        ({"state_id": 5}, {}, "state_id: expected a string"),
    ],
)
def test_a_state_that_cannot_be_used_is_a_400(api, body, headers, message):
    answer = api.post("/v1/chat/completions", {"contents": ["Hi"], **NATIVE} | body, **headers)
    assert (answer.status, answer.json) == (400, {"error": message})
    answer = api.post("/v1/completions", {"prompt": "Hi", **GREEDY} | body, **headers)
    assert (answer.status, answer.json["error"]["param"]) == (400, "state_id")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pth(tuned(heads=1)), "file: blocks.0.att.time_state: expected shape [2, 64, 64], found [1, 64, 64]"),
        (pth(tuned(layers=3)), "file: blocks.2.att.time_state: a state of this model has no such tensor"),
        (pth(tuned())[:-100], "file: not a .pth archive, or a truncated one"),
        (b"", "file: not a .pth archive, or a truncated one"),
        (pth(tuned() | {"model_fingerprint": "0" * 64}), "file: model_fingerprint: the state is of another model"),
    ],
)
def test_a_file_that_is_no_state_of_the_model_is_a_400(api, content, message):
    answer = upload(api, content)
    assert answer.status == 400
    assert answer.json["error"].startswith(message)


def test_a_file_no_state_needs_is_refused(api):
    answer = upload(api, bytes(3 * 2**20))
    assert answer.status == 413
    assert answer.json["error"].startswith("file: expected at most ")


def test_a_body_that_is_no_upload_is_a_400(api):
    answer = api.post(UPLOAD, {"state_id": "x"})
    assert (answer.status, answer.json["error"][:32]) == (400, "file: expected one .pth file as ")
    answer = api.post(DELETE, {})
    assert (answer.status, answer.json) == (400, {"error": "Missing state_id"})


@sync_to_async
def issue(name: str) -> dict:
    return bearer(ApiKey.objects.issue(name=name)[1])


@pytest.mark.usefixtures("deaf_engine")
async def test_a_state_belongs_to_the_key_that_sent_it(client):
    one, other = await issue("one"), await issue("other")
    file = SimpleUploadedFile("s.pth", pth(tuned(layers=1, heads=1)))
    state_id = (await client.post(UPLOAD, {"file": file}, headers=one)).json()["state_id"]
    assert (await client.get(LIST, headers=other)).json()["data"] == []
    body = {"prompt": "Hi", "state_id": state_id}
    answer = await client.post("/v1/completions", body, content_type="application/json", headers=other)
    assert answer.json()["error"]["message"] == f"uploaded state not found: {state_id}"
    body = {"state_id": state_id}
    answer = await client.post(DELETE, body, content_type="application/json", headers=other)
    assert answer.status_code == 404
    assert len((await client.get(LIST, headers=one)).json()["data"]) == 1
