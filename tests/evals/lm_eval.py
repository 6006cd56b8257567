"""lm-evaluation-harness on LAMBADA's form of documents, over HTTP: its own procedure and its own sums."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

LM_EVAL = str(Path(sys.executable).with_name("lm_eval"))
TASK = "lambada_local"


@dataclass(frozen=True)
class Harness:
    """What it found. `documents` are (log probability, greedy) by document."""

    acc: float
    ppl: float
    documents: list[tuple[float, bool]]


def run_harness(url: str, data: Path, limit: int, folder: Path) -> Harness:
    """The first documents of a file, against the service at `url`, which is its tokenizer, too."""
    folder.mkdir()
    text = "".join(data.read_text().splitlines(keepends=True)[:limit])
    (folder / "documents.jsonl").write_text(text)
    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    }
    (folder / f"{TASK}.yaml").write_text(yaml.safe_dump(task))
    model = f"model=rwkv7,base_url={url}/v1/completions,num_concurrent=2,max_retries=1,timeout=3600"
    command = [LM_EVAL, "--model", "local-completions", "--model_args", model, "--tasks", TASK, "--batch_size", "4"]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (samples,) = (folder / "out").rglob(f"samples_{TASK}_*.jsonl")
    (results,) = (folder / "out").rglob("results_*.json")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    figures = json.loads(results.read_text())["results"][TASK]
    documents = [(float(row["resps"][0][0][0]), str(row["resps"][0][0][1]) == "True") for row in rows]
    return Harness(figures["acc,none"], figures["perplexity,none"], documents)
