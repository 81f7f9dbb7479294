"""One 4-bit-weight matrix product: ``y[M, N] = x[M, K] @ dequantise(W)[N, K]^T (+ bias[N])``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from roofgap.shapes.errors import RoofgapError

XDtype = Literal["fp16", "bf16"]
ZeroMode = Literal["sym", "asym", "offset"]

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_SHAPE = re.compile(r"(?P<n>\d+)x(?P<k>\d+)")
_KEY = re.compile(r"n(\d+)-k(\d+)-m(\d+)-g(row|\d+)-(\w+)-(\w+?)(-bias)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Sizes and formats of one W4A16 product. Holds no tensors and needs no torch.

    Attributes:
        n: output features (rows of the weight).
        k: input features (the reduction).
        m: rows of activations, i.e. tokens; 0 is legal and gives an empty result.
        group_size: weights along K that share a scale; -1 means the whole row. A K that it does not divide ends
            in a shorter, ragged group with a scale of its own.
        x_dtype: dtype of activations, output and scales.
        zero_mode: ``sym`` (w = s * (q - 8)), ``asym`` (w = s * (q - z), z packed at 4 bits) or ``offset``
            (w = s * q + o, o in ``x_dtype``; serves float zeros and zeros outside 0..15).
        bias: whether a bias of N values is added.

    Raises:
        RoofgapError: a size or a name outside its rule.
    """

    n: int
    k: int
    m: int = 1
    group_size: int = 128
    x_dtype: XDtype = "fp16"
    zero_mode: ZeroMode = "sym"
    bias: bool = False

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("k", 1), ("m", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise RoofgapError(
                    f"{name}={value!r}", f"must be a whole number of at least {least}", "correct the shape"
                )
        if self.group_size != -1 and self.group_size < 8:
            raise RoofgapError(
                f"group_size={self.group_size}",
                "must be -1 (whole row) or at least 8",
                "choose 32, 64, 128 or 256",
            )
        if self.group_size != -1 and self.group_size % 8:
            raise RoofgapError(
                f"group_size={self.group_size}",
                "must be a multiple of 8, the codes in one packed word",
                "choose 32, 64, 128 or 256",
            )
        for name, allowed in (("x_dtype", get_args(XDtype)), ("zero_mode", get_args(ZeroMode))):
            if getattr(self, name) not in allowed:
                raise RoofgapError(
                    f"{name}={getattr(self, name)!r}", "unknown name", f"use one of {', '.join(allowed)}"
                )

    @classmethod
    def parse(cls, text: str, **fields: object) -> Problem:
        """Reads ``"8960x1536"`` (N x K) and takes the other fields from ``fields``.

        Raises:
            RoofgapError: the text is not two numbers joined by an ``x``.
        """
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise RoofgapError(f"shape {text!r}", "must read NxK", "write it like 8960x1536")
        return cls(n=int(match["n"]), k=int(match["k"]), **fields)  # type: ignore[arg-type]

    @property
    def group(self) -> int:
        """The group size with -1 resolved to K, and never larger than K."""
        return self.k if self.group_size == -1 else min(self.group_size, self.k)

    @property
    def groups(self) -> int:
        """Scales in one row: ceil(K / group)."""
        return -(-self.k // self.group)

    @property
    def shape(self) -> str:
        """``"NxK"``, as the command line takes it."""
        return f"{self.n}x{self.k}"

    @property
    def key(self) -> str:
        """A file-name-safe identity that differs whenever any field does."""
        group = "row" if self.group_size == -1 else str(self.group_size)
        bias = "-bias" if self.bias else ""
        return f"n{self.n}-k{self.k}-m{self.m}-g{group}-{self.x_dtype}-{self.zero_mode}{bias}"

    @classmethod
    def from_key(cls, text: str) -> Problem:
        """The inverse of ``key``.

        Raises:
            RoofgapError: no such key.
        """
        match = _KEY.fullmatch(text)
        if match is None:
            raise RoofgapError(f"problem key {text!r}", "cannot be read", "write it like Problem.key does")
        n, k, m, group, x_dtype, zero_mode, bias = match.groups()
        return cls(
            n=int(n),
            k=int(k),
            m=int(m),
            group_size=-1 if group == "row" else int(group),
            x_dtype=x_dtype,  # type: ignore[arg-type]  # __post_init__ checks both names
            zero_mode=zero_mode,  # type: ignore[arg-type]
            bias=bias is not None,
        )

    def with_m(self, m: int) -> Problem:
        """The same weight with another number of tokens."""
        return replace(self, m=m)

    @property
    def code_bytes(self) -> int:
        """Bytes of packed 4-bit codes, K padded to whole 32-bit words of eight."""
        return self.n * (-(-self.k // 8)) * 4

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales."""
        return self.n * self.groups * ELEMENT_BYTES[self.x_dtype]

    @property
    def zero_bytes(self) -> int:
        """Bytes of packed zeros (4 bits each, N padded to whole words of eight) or of float offsets."""
        if self.zero_mode == "sym":
            return 0
        if self.zero_mode == "offset":
            return self.n * self.groups * ELEMENT_BYTES[self.x_dtype]
        return self.groups * (-(-self.n // 8)) * 4

    @property
    def weight_bytes(self) -> int:
        """Bytes of the quantised weight: codes, scales and zeros, each read once."""
        return self.code_bytes + self.scale_bytes + self.zero_bytes

    @property
    def total_bytes(self) -> int:
        """Least bytes the product moves: weight, bias and activations read once, output written once."""
        element = ELEMENT_BYTES[self.x_dtype]
        bias = self.n * element if self.bias else 0
        return self.weight_bytes + bias + self.m * (self.n + self.k) * element

    @property
    def dense_bytes(self) -> int:
        """Bytes of the weight stored dense in ``x_dtype``."""
        return self.n * self.k * ELEMENT_BYTES[self.x_dtype]

    @property
    def flops(self) -> int:
        """Multiply and add counted as two operations."""
        return 2 * self.m * self.n * self.k
