"""Build the CUDA sources just in time, once for each source text, architecture and torch version.

The sources have plain C entry points and include no torch header, so a build takes seconds and its
result is called through ctypes; see `kernels.launch`.
"""

import ctypes
import functools
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "csrc"
CUDA_FLAGS = ["-O3", "-std=c++17", "-lineinfo"]


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels, built for the current GPU. Raises RuntimeError with the compiler's output if that fails."""
    directory = cache_directory()
    built = directory / f"{directory.name}.so"
    if not built.exists():
        directory.mkdir(parents=True, exist_ok=True)
        os.environ["TORCH_CUDA_ARCH_LIST"] = _architecture()
        # A build that is killed must leave neither a lock nor half a library where the next one looks.
        with tempfile.TemporaryDirectory(dir=directory) as private:
            cpp_extension.load(
                directory.name,
                [str(source) for source in _sources()],
                extra_cuda_cflags=CUDA_FLAGS,
                build_directory=private,
                is_python_module=False,
            )
            (Path(private) / built.name).replace(built)
    return ctypes.CDLL(str(built))


def cache_directory() -> Path:
    """Where the build lies, and whatever else is worth keeping for exactly these sources on this kind of GPU."""
    name = f"rwkv_kernels_{_digest(_sources(), _architecture())}"
    return Path(cpp_extension.get_default_build_root()) / name


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cu"))


def _architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    # The "a" unlocks what only that chip has: warpgroup products.
    return "9.0a" if (major, minor) == (9, 0) else f"{major}.{minor}"


def _digest(sources: list[Path], architecture: str) -> str:
    digest = hashlib.sha256(" ".join([torch.__version__, architecture, *CUDA_FLAGS]).encode())
    for source in [*sources, *sorted(SOURCES.glob("*.cuh"))]:
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]
