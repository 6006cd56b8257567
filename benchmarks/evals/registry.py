"""The evals by name. One line registers one."""

from benchmarks.evals.bpb import BitsPerByte
from benchmarks.evals.consistency import Consistency
from benchmarks.evals.errors import EvalError
from benchmarks.evals.evaluation import Evaluation
from benchmarks.evals.exact_match import Gsm8k, Math
from benchmarks.evals.generate import Generate
from benchmarks.evals.lambada import Lambada
from benchmarks.evals.mmlu import Mmlu
from benchmarks.evals.next_token import NextToken
from benchmarks.evals.questions import Questions

EVALS: dict[str, type[Evaluation]] = {
    kind.name: kind
    for kind in (
        Lambada,
        NextToken,
        Generate,
        Questions,
        Consistency,
        BitsPerByte,
        Mmlu,
        Gsm8k,
        Math,
    )
}


def find(name: str) -> type[Evaluation]:
    """Raises EvalError for a name that is not registered."""
    if name not in EVALS:
        raise EvalError(f"eval: {name!r} is not one of {', '.join(EVALS)}")
    return EVALS[name]
