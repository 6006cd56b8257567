"""Build the CUDA sources just in time, once for each source text, architecture and torch version.

The sources have plain C entry points and include no torch header, so a build takes seconds and its
result is called through ctypes; see `kernels.launch`.
"""

import ctypes
import functools
import hashlib
import os
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "csrc"
CUDA_FLAGS = ["-O3", "-std=c++17", "-lineinfo"]


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels, built for the current GPU. Raises RuntimeError with the compiler's output if that fails."""
    major, minor = torch.cuda.get_device_capability()
    sources = sorted(SOURCES.glob("*.cu"))
    name = f"rwkv_kernels_{_digest(sources, f'{major}.{minor}')}"
    directory = Path(cpp_extension.get_default_build_root()) / name
    built = directory / f"{name}.so"
    if not built.exists():
        directory.mkdir(parents=True, exist_ok=True)
        os.environ["TORCH_CUDA_ARCH_LIST"] = f"{major}.{minor}"
        cpp_extension.load(
            name,
            [str(source) for source in sources],
            extra_cuda_cflags=CUDA_FLAGS,
            build_directory=str(directory),
            is_python_module=False,
        )
    return ctypes.CDLL(str(built))


def _digest(sources: list[Path], architecture: str) -> str:
    digest = hashlib.sha256(" ".join([torch.__version__, architecture, *CUDA_FLAGS]).encode())
    for source in [*sources, *sorted(SOURCES.glob("*.cuh"))]:
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]
