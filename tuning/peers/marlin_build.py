"""Builds Marlin's ops from the sources that GPTQModel ships (``gptqmodel_ext/marlin``), with torch's cpp_extension."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from roofgap.kernels.formats.weight import DTYPE_NAMES
from roofgap.shapes.errors import RoofgapError

CUDA_FLAGS = (
    "-O3",
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "-static-global-template-stub=false",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
)


def build(sources: Path, dtype: torch.dtype) -> None:
    """Compiles and loads the ops of one dtype: every instantiation that the sources' own generator makes, which takes
    minutes on many cores. What is built is kept in torch's extension folder.

    Raises:
        RoofgapError: the folder is not ``gptqmodel_ext/marlin`` or holds none under it.
        Exception: what the generator or the compiler raised.
    """
    tag = DTYPE_NAMES[dtype]
    binding = next(
        iter(sorted(sources.rglob(f"marlin/marlin_torch_{tag}.cpp"))), sources / f"marlin_torch_{tag}.cpp"
    )
    if not binding.exists():
        raise RoofgapError(str(sources), f"holds no marlin_torch_{tag}.cpp", "give gptqmodel_ext/marlin")
    from torch.utils import cpp_extension

    name = f"roofgap_marlin_{tag}"
    folder = Path(cpp_extension._get_build_directory(name, False))
    root = folder / "sources"
    shutil.copytree(binding.parent, root, dirs_exist_ok=True)
    subprocess.run([sys.executable, str(root / "generate_kernels.py")], cwd=root, check=True)
    files = [
        f"marlin_torch_{tag}.cpp",
        f"gptq_marlin_{tag}.cu",
        "gptq_marlin_repack.cu",
        "awq_marlin_repack.cu",
    ]
    kernels = sorted(root.glob(f"kernel_{tag}_*.cu"))
    cpp_extension.load(
        name,
        [str(root / file) for file in files] + [str(kernel) for kernel in kernels],
        extra_cflags=["-O3", "-std=c++20"],
        extra_cuda_cflags=list(CUDA_FLAGS),
        extra_include_paths=[str(root)],
        build_directory=str(folder),
        is_python_module=False,
    )
