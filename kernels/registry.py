"""Every kernel variant by name. A new kernel is one file in ``variants/`` and one line here."""

from __future__ import annotations

from roofgap.kernels.variant import Variant
from roofgap.kernels.variants.gemm import Gemm
from roofgap.kernels.variants.tldot import TlDot
from roofgap.kernels.variants.v1 import V1
from roofgap.kernels.variants.v2 import V2
from roofgap.kernels.variants.v3 import V3
from roofgap.kernels.variants.v4 import V4
from roofgap.shapes.errors import RoofgapError

VARIANTS: dict[str, Variant] = {
    variant.name: variant for variant in (V1(), V2(), V3(), V4(), TlDot(), Gemm())
}


def get_variant(name: str) -> Variant:
    """Looks a variant up.

    Raises:
        RoofgapError: no such variant.
    """
    if name not in VARIANTS:
        raise RoofgapError(f"variant {name!r}", "is not registered", f"use one of {', '.join(VARIANTS)}")
    return VARIANTS[name]
