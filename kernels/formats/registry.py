"""Every packed layout by name."""

from __future__ import annotations

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.layout import Layout
from roofgap.kernels.formats.nmajor import NMajor

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in (KPacked, NMajor, Interleaved)}
