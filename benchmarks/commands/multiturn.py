"""`bench multiturn`: users who hold conversations, with their whole history or in sessions that the server keeps."""

from argparse import ArgumentParser, Namespace
from typing import TextIO

from benchmarks.commands import generate

HELP = "Let users hold conversations of several turns. --stateful needs a back end with sessions, such as rwkv-state."

DEFAULTS = {"users": 1, "backend": "openai-chat", "num_turns": 4, "random_input_len": 64}


def add_arguments(parser: ArgumentParser) -> None:
    generate.add_arguments(parser)


def run(options: Namespace, stdout: TextIO) -> int:
    values = generate.given_options(options, DEFAULTS)
    values.setdefault("dataset_name", "conversations" if values.get("dataset_path") else "synthetic_conversations")
    if values.get("stateful") and "backend" not in vars(options):
        values["backend"] = "rwkv-state"
    return generate.run("multiturn", values, options, stdout)
