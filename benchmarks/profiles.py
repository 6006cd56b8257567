"""Load profiles as the console knows them: options of the bench commands by name, checked by the generator itself."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.loadgen import declare, options
from benchmarks.loadgen.declare import BadOption

# A form may not set these: they name servers, secrets and files, which targets and data sets are checked for, or they
# have fields of their own.
RESERVED = {
    "allow_host": "the target",
    "api_key_env": "the target",
    "backend": "the target",
    "base_url": "the target",
    "endpoint": "the target",
    "header": "the target",
    "host": "the target",
    "model": "the target",
    "port": "the target",
    "dataset_name": "the data set",
    "dataset_path": "the data set",
    "goodput": "the SLOs",
    "seed": "the seed",
    "system_prompt_path": "nobody here: it reads any file",
    "template": "nobody here: it reads any file",
}
SLO_METRICS = ("ttft", "ttft_sched", "ttfot", "tpot", "e2el", "e2el_sched")


def check_names(given: Iterable[str]) -> None:
    """Raises BadOption for an option that does not exist, or that a profile may not set."""
    known = declare.known_names(options.Profile)
    for name in given:
        if name not in known:
            raise BadOption(f"{name!r} is not an option of the bench commands")
        if name in RESERVED:
            raise BadOption(f"{name!r} is set by {RESERVED[name]}")


def check(kind: str, values: Mapping[str, Any]) -> None:
    """Raises BadOption, which names what the command would refuse."""
    profile = options.checked_profile(values)
    if (profile.users is None) != (kind == "serve"):
        raise BadOption("--users belongs to clients and conversations, which need it, and not to requests at a rate")


def check_slos(slos: object) -> None:
    """Raises BadOption unless these are limits in ms by metric."""
    if not isinstance(slos, dict):
        raise BadOption('must be an object of limits in ms, like {"ttft": 200}')
    for name, limit in slos.items():
        if name not in SLO_METRICS:
            raise BadOption(f"{name!r} is none of {', '.join(SLO_METRICS)}")
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise BadOption(f"{name}: {limit!r} is not a limit in ms")


def arguments(values: Mapping[str, Any]) -> list[str]:
    """The words of the command line for these options."""
    return declare.to_arguments(options.Profile, values)
