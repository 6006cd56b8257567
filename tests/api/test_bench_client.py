"""A client that reads streams exactly as `vllm bench serve` does: its rules decide what its users see measured."""

import json

import aiohttp
import pytest


async def measure(url: str, body: dict, *, choice_text) -> dict:
    """Every event with choices is a token event; usage counts where choices are empty; [DONE] is skipped."""
    output = {"text": "", "events": 0, "tokens": None, "prompt": None}
    buffer = b""
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        async for piece in response.content.iter_any():
            *events, buffer = (buffer + piece).split(b"\n\n")
            for event in events:
                text = event.decode().strip()
                if text.startswith(":"):
                    continue
                chunk = text.removeprefix("data: ")
                if chunk == "[DONE]":
                    continue
                data = json.loads(chunk)
                if choices := data.get("choices"):
                    output["events"] += 1
                    output["text"] += choice_text(choices[0]) or ""
                elif usage := data.get("usage"):
                    output["tokens"], output["prompt"] = usage["completion_tokens"], usage["prompt_tokens"]
    assert buffer == b""
    return output


@pytest.mark.parametrize("tokens", [1, 17])
async def test_completions(api, tokens):
    body = {
        "model": "rwkv7",
        "prompt": "Once upon a time",
        "repetition_penalty": 1.0,
        "max_tokens": tokens,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
        "best_of": 1,
    }
    output = await measure(f"{api.url}/v1/completions", body, choice_text=lambda choice: choice.get("text"))
    assert (output["tokens"], output["prompt"]) == (tokens, 4)
    assert output["text"] and 1 <= output["events"] <= tokens + 1


async def test_chat(api):
    body = {
        "model": "rwkv7",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]}],
        "max_completion_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    url = f"{api.url}/v1/chat/completions"
    output = await measure(url, body, choice_text=lambda choice: choice["delta"].get("content"))
    assert output["tokens"] == 9 and output["text"]
    assert output["events"] >= 2, "a role frame, and at least one with text"
