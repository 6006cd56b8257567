"""Log probabilities on their way from a GPU to the host."""

import pytest
import torch

from inference.engine.backend import Chunk
from inference.engine.prompt_logprobs import PromptLogprobs
from inference.engine.sampler import RankedTokens
from tests.gpu.accuracy import DEVICE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ROWS, VOCAB, TOP = 7, 1000, 3
LONG = 10**9  # clock cycles: half a second


def test_reading_waits_for_the_device() -> None:
    """A back end that does not overlap steps reads at once, whatever the device still has to do."""
    logits, tokens = torch.randn(ROWS, VOCAB, device=DEVICE), torch.randint(VOCAB, (ROWS,), device=DEVICE)
    for _ in range(2):  # what a first call loads may wait for the device
        torch.cuda._sleep(LONG)
        entries = RankedTokens(logits, tokens, TOP).read()
    exact = torch.log_softmax(logits.double(), dim=-1)
    largest = exact.topk(TOP)
    for row, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(exact[row, tokens[row]].item(), abs=1e-5)
        assert [token for token, _ in entry.top] == largest.indices[row].tolist()


def test_so_does_reading_those_of_prompts() -> None:
    hidden = torch.randn(40, VOCAB, device=DEVICE)
    chunk = Chunk(0, list(range(40)), sample=True, prompt_logprobs=0)
    for _ in range(2):
        torch.cuda._sleep(LONG)
        (entries,) = PromptLogprobs([chunk], 0, lambda at: hidden[at], DEVICE).read().values()
    exact = torch.log_softmax(hidden.double(), dim=-1)
    assert [entry.logprob for entry in entries] == pytest.approx([exact[i, i + 1].item() for i in range(39)], abs=1e-5)
