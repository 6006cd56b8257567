"""Options of the tools whose names are taken over (vLLM's, api_bench_tools') that have no effect or no place here.

One table each, with the reason that the user is told. Whatever has a meaning here is an option of `options.Profile`.
"""

import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

ONE, SEVERAL = None, "+"  # values, as argparse counts them
NONE = 0

# Accepted: the load is the same without them.
NO_EFFECT: Mapping[str, tuple[Any, str]] = {
    "--tokenizer-mode": (ONE, "there is one way to read the World vocabulary"),
    "--trust-remote-code": (NONE, "no code of a model is loaded"),
    "--skip-chat-template": (NONE, "prompts are sent as they are, without a template"),
    "--enable-multimodal-chat": (NONE, "messages of a data set are sent with all of their parts"),
    "--custom-ensure-client-side-data": (NONE, "messages of a data set are sent as they are"),
    "--no-reranker": (NONE, "the back end says what is asked for"),
    "--hf-name": (ONE, "the columns of --dataset-path tell what it is"),
    "--hf-subset": (ONE, "the file of --dataset-path is the subset"),
    "--hf-split": (ONE, "the file of --dataset-path is the split"),
    "--plot-dataset-stats": (NONE, "the run's page has the lengths, `bench export --format csv` those of each request"),
    "--plot-timeline": (NONE, "the run's page has the timeline"),
    "--timeline-itl-thresholds": (ONE, "it belongs to --plot-timeline"),
    "--execute-mode": (ONE, "users are tasks of --workers processes"),
    "--log-file": (ONE, "progress goes to standard error: redirect it"),
    "--no-early-stop": (NONE, "no user stops early; the measured window ends with the first who is through"),
    "-v --verbose": (NONE, "--progress-json and --print-content tell more"),
}

# Refused: a load without them would be another one.
REFUSED: Mapping[str, tuple[Any, str]] = {
    "--api-key": (ONE, "a key on the command line is seen by all: name a variable that holds it, --api-key-env NAME"),
    "--warmup-step": (NONE, "use --num-warmups or --warmup-seconds; the table by turn tells the first turns apart"),
    "--warmup-percentages": (ONE, "use --warmup-seconds"),
    "--spec-bench-category": (ONE, "give a file with the rows of that category alone"),
    "--speed-bench-dataset-subset": (ONE, "use --dataset-name hf with the file of that subset"),
    "--speed-bench-category": (ONE, "use --dataset-name hf with the rows of that category alone"),
    "--blazedit-min-distance": (ONE, "use --dataset-name hf with the rows wanted"),
    "--blazedit-max-distance": (ONE, "use --dataset-name hf with the rows wanted"),
    "--asr-min-audio-len-sec": (ONE, "use --dataset-name custom with the messages wanted"),
    "--asr-max-audio-len-sec": (ONE, "use --dataset-name custom with the messages wanted"),
    "--bfcl-categories": (SEVERAL, "use --dataset-name custom with the messages wanted"),
    "--random-mm-base-items-per-request": (ONE, "use --dataset-name custom with messages that hold images"),
    "--random-mm-num-mm-items-range-ratio": (ONE, "use --dataset-name custom with messages that hold images"),
    "--random-mm-limit-mm-per-prompt": (ONE, "use --dataset-name custom with messages that hold images"),
    "--random-mm-bucket-config": (ONE, "use --dataset-name custom with messages that hold images"),
}

DATASETS: Mapping[str, str] = {
    "random-mm": "use custom with messages that hold images",
    "random-rerank": "use custom: the first line of a prompt is the query, the others are documents",
    "custom_audio": "use custom with messages that have a part of type input_audio",
    "custom_image": "use custom with messages that have a part of type image_url",
    "speed_bench": "use hf with a file of it",
}


def add_arguments(parser: ArgumentParser) -> None:
    ignored = parser.add_argument_group("options of other tools that have no effect here")
    for flags, (count, reason) in NO_EFFECT.items():
        ignored.add_argument(*flags.split(), action=_Ignored, nargs=count, reason=reason, help=reason)
    refused = parser.add_argument_group("options of other tools that are refused")
    for flags, (count, reason) in REFUSED.items():
        refused.add_argument(*flags.split(), action=_Refused, nargs=count, reason=reason, help=reason)


class _Foreign(Action):
    """Its value goes nowhere."""

    def __init__(self, *, reason: str, dest: str, **rules: Any) -> None:
        super().__init__(**rules, dest=dest, default=SUPPRESS, metavar="...")
        self.reason = reason


class _Ignored(_Foreign):
    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        sys.stderr.write(f"{option_string} has no effect here: {self.reason}\n")


class _Refused(_Foreign):
    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: Any = None) -> None:
        raise ArgumentError(self, self.reason)
