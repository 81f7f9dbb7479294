"""GemLite: Triton kernels with a tuner of their own."""

from __future__ import annotations

import importlib
import sys
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from roofgap.kernels.formats.weight import SYM_ZERO, QuantizedWeight
from roofgap.kernels.reference import Reference, reference
from roofgap.shapes.problem import Problem
from roofgap.tuning.peers.peer import Packed, Peer, Tuned
from roofgap.tuning.peers.rounding import with_atomics

if TYPE_CHECKING:
    from roofgap.tuning.peers.gemlite_compile import Ahead

Setting = Literal["default", "fast", "max"]
LEAST_GROUP = 32


class GemLite(Peer):
    """Packed as its own ``A16W4_HQQ_INT`` helper does: int32 words of eight k, K-major, w = fma(q, s, z) with s and
    z = -zero * s in the activations' dtype, and called through ``gemlite::forward_functional``, which chooses the
    kernel by M: up to 4 ``GEMV_REVSPLITK``, below 64 ``GEMM_SPLITK``, else ``GEMM``.

    Arithmetic: one 16-bit fma per weight, fp32 sums within a program, then programs that split K add their partial sums
    to the output by 16-bit atomics (``rounding.with_atomics``).

    Args:
        setting: of its tuner. ``max`` is its most thorough; None leaves the library as it comes, its shipped configs
            included.
        configs: JSON file in its own format (``gemlite.cache_config``). Shapes found in it are not tuned again; newly
            tuned ones are added.
        workers: processes that compile the tuner's configs ahead of it; 0 leaves that to the tuner, one at a time.
    """

    name = "gemlite"
    package = "gemlite"

    def __init__(self, setting: Setting | None = None, configs: Path | None = None, workers: int = 0) -> None:
        self._setting, self._configs, self._workers = setting, configs, workers
        self._opened = False
        self._ahead: Ahead | None = None

    def refuses(self, problem: Problem) -> str | None:
        """What its constructor refuses, and formats of zeros that its packing would round."""
        if problem.zero_mode == "offset":
            return "GemLite makes its offsets from zeros"
        if problem.group_size < LEAST_GROUP or problem.k % problem.group_size:
            return "GemLite takes groups of at least 32 that divide K"
        return None

    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        """Through its own ``pack``; symmetric weights get zeros of 8."""
        core = self._open()
        kind = core.TORCH_TO_DTYPE[dtype]
        linear = core.GemLiteLinearTriton(
            W_nbits=4,
            group_size=weight.group_size,
            in_features=weight.k,
            out_features=weight.n,
            input_dtype=kind,
            output_dtype=kind,
        )
        scales = weight.scales.to(dtype)
        zeros = torch.full_like(scales, SYM_ZERO) if weight.zeros is None else weight.zeros.to(dtype)
        linear.pack(weight.codes, scales, zeros, bias=None)
        codes, scales, zeros, meta_scale = (tensor.detach() for tensor in linear.get_tensor_args())
        return Packed(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            dtype=dtype,
            read={"codes": codes, "scales": scales, "zeros": zeros},
            shared={"meta_scale": meta_scale, "meta": linear.get_meta_args()},
        )

    def tune(self, x: torch.Tensor, packed: Packed) -> Tuned:
        """Compiles what its tuner will try on many cores, lets it tune by calling it once, and keeps what it chose."""
        core, begun = self._open(), perf_counter()
        family = _family(x.shape[0])
        if self._workers and not self._is_known(family, x, packed):
            self._compile_ahead(x, packed)
        self.run(x, packed)
        torch.cuda.synchronize(x.device)
        seconds = perf_counter() - begun
        if self._configs is not None:
            self._configs.parent.mkdir(parents=True, exist_ok=True)
            core.GemLiteLinearTriton.cache_config(str(self._configs))
        chosen = _kernel(family).best_config
        return Tuned(
            config=f"{family} " + ",".join(f"{key}={value}" for key, value in _told(chosen).items()),
            seconds=seconds,
            atomic_splits=_splits(family, chosen.kwargs, packed.k),
        )

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns a new tensor; where K is split it is filled with zeros first, which is a part of the op."""
        core = self._open()
        tensors = [*packed.read.values(), packed.shared["meta_scale"]]
        return cast("torch.Tensor", core.forward_functional(x, None, tensors, packed.shared["meta"]))

    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        """With scales and offsets as they were stored."""
        stored = QuantizedWeight(
            codes=weight.codes,
            scales=packed.read["scales"].T.contiguous(),
            zeros=packed.read["zeros"].T.contiguous(),
            group_size=weight.group_size,
        )
        return with_atomics(reference(x, stored), tuned.atomic_splits)

    def close(self) -> None:
        """Ends the compiling processes."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _open(self) -> Any:
        """``gemlite.core``, set up once."""
        core = importlib.import_module("gemlite.core")
        if not self._opened:
            self._opened = True
            if self._setting is not None:
                core.GemLiteLinearTriton.reset_config()
                importlib.import_module("gemlite.triton_kernels.config").set_autotune(self._setting)
            if self._configs is not None and self._configs.exists():
                core.GemLiteLinearTriton.load_config(str(self._configs))
        return core

    def _is_known(self, family: str, x: torch.Tensor, packed: Packed) -> bool:
        """Whether its configs hold the shape, in whatever dtype of 16 bits: it does not tell them apart."""
        utils = importlib.import_module("gemlite.triton_kernels.utils")
        meta = packed.shared["meta"]
        kind = self._open().DType.FP16.value * 100 + meta[1]
        signature = (utils.get_closest_m(x.shape[0]), packed.n, packed.k, packed.group_size, meta[4], kind)
        return str(signature) in self._open().GEMLITE_TRITON_CONFIG_CACHE.get(family, {})

    def _compile_ahead(self, x: torch.Tensor, packed: Packed) -> None:
        """A failure here costs time only: the tuner compiles what is missing by itself."""
        from roofgap.tuning.peers.gemlite_compile import Ahead, Call

        try:
            if self._ahead is None:
                self._ahead = Ahead(x.device, self._setting, self._workers)
            self._ahead.compile(Call.of(x, packed))
        except Exception as error:
            print(f"gemlite: not compiled ahead: {type(error).__name__}: {error}", file=sys.stderr)
            self._workers = 0


def _family(m: int) -> str:
    """Which of its kernels serves M rows of 4-bit weights."""
    return cast("str", importlib.import_module("gemlite.core").get_matmul_type(m, 4, False))


def _kernel(family: str) -> Any:
    """The autotuned kernel of a family as it is now: setting the tuner reloads these modules."""
    names = {
        "GEMV_REVSPLITK": ("gemv_revsplitK_kernels", "gemv_INT_revsplitK_kernel"),
        "GEMM_SPLITK": ("gemm_splitK_kernels", "gemm_splitK_INT_kernel"),
        "GEMM": ("gemm_kernels", "gemm_INT_kernel"),
    }
    module, kernel = names[family]
    return getattr(importlib.import_module(f"gemlite.triton_kernels.{module}"), kernel)


def _told(config: Any) -> dict[str, Any]:
    """A config without what says nothing."""
    hidden = ("EVEN_M", "EVEN_N", "EVEN_K", "num_ctas", "maxnreg", "ir_override", "NUM_STAGES")
    return {key: value for key, value in config.all_kwargs().items() if key not in hidden}


def _splits(family: str, config: dict[str, Any], k: int) -> int:
    """Programs that add to one output: ``GEMV_REVSPLITK`` takes two blocks of K each."""
    if family == "GEMV_REVSPLITK":
        return ceil(k / (2 * int(config["BLOCK_SIZE_K"])))
    return int(config.get("SPLIT_K", 1))
