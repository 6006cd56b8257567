"""lm-evaluation-harness against the service: tokenised prompts, and the server as its tokenizer."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LM_EVAL = str(Path(sys.executable).with_name("lm_eval"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DOCUMENTS = [
    {"question": "The capital of France is", "choices": ["Paris", "a potato", "世界"], "answer": 0},
    {"question": "Two and two is", "choices": ["five", "four", "1"], "answer": 1},
]
TASKS = {
    "tiny_choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    },
    "tiny_generate": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 9},
        "metric_list": [{"metric": "bypass"}],
    },
}


@pytest.fixture(scope="module")
def samples(service, tmp_path_factory) -> dict[str, list[dict]]:
    """What lm-eval logged of each task's documents."""
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, task in TASKS.items():
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(common | task))
    model = f"model=rwkv7,base_url={service.url}/v1/completions,num_concurrent=1,max_retries=1"
    command = [LM_EVAL, "--model", "local-completions", "--model_args", model, "--tasks", ",".join(TASKS)]
    command += [
        "--include_path",
        str(folder),
        "--output_path",
        str(folder / "out"),
        "--log_samples",
        "--batch_size",
        "2",
    ]
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Using remote tokenizer" in done.stderr + done.stdout
    found = {}
    for name in TASKS:
        (path,) = (folder / "out").rglob(f"samples_{name}_*.jsonl")
        found[name] = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return found


def test_log_likelihoods(samples, api):
    """The same as the service's own logprobs of the continuation's tokens."""
    for document, sample in zip(DOCUMENTS, samples["tiny_choice"], strict=True):
        for choice, ((logprob, greedy),) in zip(document["choices"], sample["resps"], strict=True):
            context = api.post("/tokenize", {"prompt": document["question"]}).reply["tokens"]
            whole = api.post("/tokenize", {"prompt": f"{document['question']} {choice}"}).reply["tokens"]
            body = {"prompt": whole, "echo": True, "logprobs": 1, "max_tokens": 0}
            logprobs = api.post("/v1/completions", body).reply["choices"][0]["logprobs"]
            assert math.isclose(float(logprob), sum(logprobs["token_logprobs"][len(context) :]), rel_tol=1e-4)
            assert str(greedy) == "False"


def test_generated_texts(samples, api):
    for document, sample in zip(DOCUMENTS, samples["tiny_generate"], strict=True):
        body = {"prompt": document["question"], "temperature": 0, "max_tokens": 9, "stop": ["\n", "e"]}
        assert sample["resps"] == [[api.post("/v1/completions", body).reply["choices"][0]["text"]]]
