"""Write a random checkpoint, for tests and speed measurements where no trained weights are at hand."""

from argparse import ArgumentParser
from pathlib import Path

import torch
from django.core.management.base import BaseCommand, CommandError

from inference.engine.backends import DTYPES
from inference.engine.synthetic import SIZES, VOCAB, make_checkpoint


class Command(BaseCommand):
    help = "Write a random RWKV-7 checkpoint: official names and shapes, and text that means nothing."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="a new .pth or .safetensors file")
        parser.add_argument("--size", choices=SIZES, default="0.1b")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--sparsity", type=float, default=0.9, help="share of zeros after relu(x)^2 (default 0.9)")
        parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
        parser.add_argument("--vocab", type=int, default=VOCAB, help=f"default {VOCAB}")

    def handle(self, *, path: Path, size: str, seed: int, sparsity: float, dtype: str, vocab: int, **options) -> None:
        if path.suffix not in (".pth", ".safetensors"):
            raise CommandError(f"path: {path} must end in .pth or .safetensors")
        if path.exists():
            raise CommandError(f"path: {path} exists already, and may be worth keeping")
        if not path.parent.is_dir():
            raise CommandError(f"path: there is no folder {path.parent}")
        if not 0 < sparsity < 1:
            raise CommandError(f"--sparsity: {sparsity} must be between 0 and 1")
        if vocab < 2:
            raise CommandError(f"--vocab: {vocab} must be at least 2")
        make_checkpoint(
            path,
            size,
            seed=seed,
            sparsity=sparsity,
            dtype=DTYPES[dtype],
            vocab=vocab,
            device="cuda" if torch.cuda.is_available() else "cpu",
            progress=self.show_progress,
        )
        self.stdout.write(f"{path}: {size}, {path.stat().st_size / 1e9:.2f} GB")

    def show_progress(self, share: float) -> None:
        self.stderr.write(f"\rmaking weights {share:4.0%}", ending="" if share < 1 else "\n")
