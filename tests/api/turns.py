"""Turns of sessions over HTTP, and what the same text gives without a session."""

from inference.text.tokenizer import get_tokenizer

PATH = "/state/chat/completions"
BRANCH_PATH = "/multi_state/chat/completions"
# Whatever a random model says with these words has one tokenisation, so a text can stand for its tokens.
WORDS = [" cat", " dog", " house", " tree", " river", " stone", " cloud", " bird", " apple", " road", " ship", " light"]
GREEDY = {
    "temperature": 0,
    "max_tokens": 6,
    "stop_tokens": [],
    "ignore_eos": True,
    "logit_bias": {str(get_tokenizer().encode(word)[0]): 100 for word in WORDS},
}


def say(api, session: str | None, text: str, path: str = PATH, **more):
    return api.post(path, {"contents": [text], **GREEDY} | ({"session_id": session} if session else {}) | more)


def text_of(answer) -> str:
    (choice,) = answer.reply["choices"]
    return choice["message"]["content"]


def continued(api, text: str, **more) -> str:
    """What the model says behind this text when it is sent as one prompt."""
    return text_of(api.post("/v1/chat/completions", {"contents": [text], **GREEDY} | more))


def completed(api, prompt: list[int]) -> str:
    """What the model says behind these tokens."""
    return api.post("/v1/completions", {"prompt": prompt, **GREEDY}).reply["choices"][0]["text"]


def branch(api, session: str, index: int, text: str, **more):
    return say(api, session, text, BRANCH_PATH, dialogue_idx=index, **more)


def listed(api, session: str) -> list[dict]:
    items = api.get("/state/status").reply["sessions"]
    return [item for item in items if item["session_id"] == session or item["session_id"].startswith(f"{session}:")]
