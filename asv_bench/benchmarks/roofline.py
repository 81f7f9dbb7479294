"""What a decoded token costs at the roof. Exact: a step is a change of accounting, manifest or profile."""

from __future__ import annotations

from ._need import need

MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b", "orch-fusion")
# Formats of linears and head.
FORMATS = {"bf16": ("bf16", "bf16"), "w4 + bf16 head": ("w4", "bf16"), "w4 + w4 head": ("w4", "w4")}
GPUS = ("rtx-3060", "h200")


class TokenBytes:
    """Bytes that a token reads with an empty cache."""

    params = (MODELS, tuple(FORMATS))
    param_names = ("model", "format")
    version = "1"

    def setup(self, model: str, formats: str) -> None:
        self.manifest = need("roofgap.shapes.manifest", "load_manifest")(model)
        self.formats = need("roofgap.shapes.accounting", "choose_formats")(*FORMATS[formats])
        self.honest = need("roofgap.shapes.accounting", "honest")

    def track_bytes(self, model: str, formats: str) -> int:
        return int(self.honest(self.manifest, *self.formats).total)

    track_bytes.unit = "bytes"  # type: ignore[attr-defined]


class TokenFloor:
    """Least time of a token, matrices one after the other: W4 linears, bf16 head, empty cache."""

    params = (MODELS, GPUS)
    param_names = ("model", "gpu")
    version = "1"

    def setup(self, model: str, gpu: str) -> None:
        manifest = need("roofgap.shapes.manifest", "load_manifest")(model)
        formats = need("roofgap.shapes.accounting", "choose_formats")("w4", "bf16")
        profile = need("roofgap.shapes.device", "load_device")(gpu)
        self.floor = need("roofgap.shapes.roofline", "token_floor")(
            manifest,
            *formats,
            read=need("roofgap.shapes.accounting", "honest")(manifest, *formats),
            bandwidth=profile.bandwidth(),
            launch_floor_us=profile.launch_floor_us or 0.0,
        )

    def track_us(self, model: str, gpu: str) -> float:
        return float(self.floor.matrices_us + self.floor.other_us)

    track_us.unit = "us"  # type: ignore[attr-defined]
