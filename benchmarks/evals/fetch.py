"""Data sets from the Hugging Face hub, by checksum."""

import shutil
from pathlib import Path

from benchmarks.evals.datasets import check_sha256, known_sha256
from benchmarks.evals.errors import EvalError


def fetch(repo: str, file: str, target: Path, *, revision: str = "main", expected: str = "") -> str:
    """Copy one file of a data set to `target`, and return its SHA-256. Raises EvalError.

    `expected` is a checksum, or the name of a public file as `datasets.PUBLIC` has it.
    A target that is there already with the `expected` checksum is left as it is, without a connection.
    """
    expected = known_sha256(expected)
    if target.exists():
        return check_sha256(target, expected)
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise EvalError(
            f"huggingface_hub is not installed: pip install huggingface_hub, or {_by_hand(target)}"
        ) from None
    try:
        found = Path(hf_hub_download(repo, file, repo_type="dataset", revision=revision))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise EvalError(
            f"{repo}/{file} cannot be fetched ({reason}); when this machine is offline, {_by_hand(target)}"
        ) from None
    checksum = check_sha256(found, expected)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        shutil.copyfile(found, part)
        part.replace(target)
    except OSError as error:
        raise EvalError(f"output: {target} cannot be written: {error.strerror}") from None
    return checksum


def _by_hand(target: Path) -> str:
    return f"copy the file from another machine to {target} and run this again to check it"
