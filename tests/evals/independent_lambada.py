"""LAMBADA as the PyPI package `rwkv` has it, with its own tokenizer: nothing of the project is used here.

`python independent_lambada.py CHECKPOINT DATA LIMIT PREFIX...`, a prefix being a token id or "none"; prints a
JSON list for each prefix, with [log probability, right or wrong] of each document.
"""

import json
import sys
from pathlib import Path

import rwkv.rwkv_tokenizer
import torch
from rwkv.model import RWKV

VOCABULARY = Path(rwkv.rwkv_tokenizer.__file__).with_name("rwkv_vocab_v20230424.txt")
TOKENIZER = rwkv.rwkv_tokenizer.TRIE_TOKENIZER(str(VOCABULARY))


def main() -> None:
    checkpoint, data, limit, *prefixes = sys.argv[1:]
    model = RWKV(model=checkpoint.removesuffix(".pth"), strategy="cpu fp32")
    texts = [json.loads(line)["text"] for line in Path(data).read_text().splitlines()[: int(limit)]]
    print(json.dumps([[score(model, text, prefix) for text in texts] for prefix in prefixes]))


def score(model: RWKV, text: str, prefix: str) -> tuple[float, bool]:
    context, _, word = text.rpartition(" ")
    begin = [] if prefix == "none" else [int(prefix)]
    known, wanted = begin + TOKENIZER.encode(context), TOKENIZER.encode(" " + word)
    logits, _ = model.forward(known + wanted[:-1], None, full_output=True)
    scores = torch.log_softmax(logits[len(known) - 1 :].float(), dim=-1)
    logprob = sum(float(row[token]) for row, token in zip(scores, wanted, strict=True))
    return logprob, scores.argmax(dim=-1).tolist() == wanted


if __name__ == "__main__":
    main()
