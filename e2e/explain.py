"""What a row's time is made of and what its 4 bits cost, taken while the arm is still in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofgap.e2e.arms import Build
from roofgap.e2e.models import ModelSource
from roofgap.e2e.prepare import Options, PreparedArm
from roofgap.e2e.rows import Row
from roofgap.shapes.accounting import TokenBytes
from roofgap.shapes.files import write_text
from roofgap.tuning.measure.device import Device

if TYPE_CHECKING:
    from roofgap.e2e.breakdown.account import Breakdown
    from roofgap.e2e.quality.text import TokenText
    from roofgap.kernels.variant import Variant

QUALITY_CONTEXT, QUALITY_STEPS = 64, 128


@dataclass(slots=True)
class Inspector:
    """Given to ``compare`` as ``inspect``. Collects a breakdown per arm and, with real weights, quality per build.

    Attributes:
        source: the model.
        device: where it runs.
        options: of the comparison at hand; set it before each depth.
        breakdown: whether to profile every arm by role, its matrices measured alone as well.
        quality: whether to score a text; needs real weights with a tokenizer.
    """

    source: ModelSource
    device: Device
    options: Options
    breakdown: bool = False
    quality: bool = False
    _breakdowns: dict[tuple[str, int], tuple[TokenBytes, Breakdown]] = field(default_factory=dict)
    _alone: dict[Build, dict[str, float]] = field(default_factory=dict)
    _qualities: dict[Build, dict[str, Any]] = field(default_factory=dict)
    _text: TokenText | None = None
    _dense: Any = None

    def __call__(self, ready: PreparedArm) -> None:
        """Inspects one live arm.

        Raises:
            RoofgapError: a profile without kernels, weights without a tokenizer, or a decode path that computes
                another model than the window path.
        """
        if ready.built is None or ready.decoder is None or ready.step is None:
            return
        if self.breakdown:
            logits = (
                ready.decoder.logits
            )  # a graph's own tensor; the eager step that is profiled leaves another
            found = self._break_down(ready)
            ready.decoder.logits = logits
            self._breakdowns[(ready.arm.name, self.options.depth)] = (ready.read, found)
        if self.quality and ready.arm.build not in self._qualities:
            self._qualities[ready.arm.build] = self._score(ready)

    def with_quality(self, rows: Sequence[Row], builds: dict[str, Build]) -> list[Row]:
        """Rows with their quality columns; ``builds`` is each arm's build by name."""
        return [
            row.model_copy(update=self._qualities.get(builds[row.arm], {})) if row.arm in builds else row
            for row in rows
        ]

    def write(self, rows: Sequence[Row], folder: Path) -> list[str]:
        """Writes ``ARM-DEPTH.json`` and ``.svg`` for every arm that was broken down.

        Returns:
            A line per arm that says where its time goes.

        Raises:
            RoofgapError: the folder cannot be written to, or matplotlib is not installed.
        """
        from roofgap.e2e.breakdown.draw import draw
        from roofgap.e2e.breakdown.waterfall import make_waterfall

        lines = []
        for row in rows:
            found = self._breakdowns.get((row.arm, row.depth))
            if found is None or row.ms_per_token is None or row.device_read_gbps is None:
                continue
            read, breakdown = found
            waterfall = make_waterfall(1e3 * row.ms_per_token, row.device_read_gbps, read, breakdown)
            stem = folder / f"{row.model}-{row.arm}-{row.depth}"
            text = f'{{"breakdown": {breakdown.model_dump_json()}, "waterfall": {waterfall.model_dump_json()}}}\n'
            write_text(stem.with_name(f"{stem.name}.json"), text)
            draw(
                waterfall,
                breakdown,
                stem.with_name(f"{stem.name}.svg"),
                title=f"{row.model}, {row.arm}, {row.depth}",
            )
            lines.append(f"{row.arm}: {waterfall.summary}")
        return lines

    def _break_down(self, ready: PreparedArm) -> Breakdown:
        from roofgap.e2e.breakdown.collect import collect
        from roofgap.e2e.breakdown.isolate import isolated_us, role_bytes

        assert ready.built is not None
        assert ready.decoder is not None
        assert ready.step is not None
        build, options, read = ready.arm.build, self.options, ready.read
        manifest = self.source.manifest.fused() if build.fused_linears else self.source.manifest
        weights, head = options.formats(build)
        matrices = replace(
            build, fused_operators=False, epilogues=False
        )  # the same products, whatever surrounds them
        if matrices not in self._alone:
            problems = manifest.problems(
                group_size=options.group_size, x_dtype="bf16", zero_mode=options.zero_mode
            )
            self._alone[matrices] = isolated_us(problems, _variants(build), self.device)
        return collect(
            ready.step,
            ready.reset,
            model=ready.built.model,
            linears=ready.built.roles(),
            eager_step=None if ready.arm.loop == "inductor" else ready.decoder.step,
            read_bytes=role_bytes(manifest, weights, head, kv_bytes=read.kv, norm_bytes=read.norms),
            isolated_us=self._alone[matrices],
        )

    def _score(self, ready: PreparedArm) -> dict[str, Any]:
        from roofgap.e2e.quality.evaluate import evaluate, load_tokens
        from roofgap.e2e.quality.paths import compare_paths
        from roofgap.e2e.quality.protocol import Protocol
        from roofgap.e2e.quality.text import probe

        assert ready.built is not None
        assert ready.decoder is not None
        if self._text is None:
            import torch

            self._text = load_tokens(self.source, probe())
            self._dense = self.source.build(self.device.torch_device, torch.float32)
        quality = evaluate(ready.built.model, self._dense, self._text, Protocol())
        agreement = compare_paths(
            ready.decoder,
            self._text.tokens,
            context=QUALITY_CONTEXT,
            count=QUALITY_STEPS,
            step=ready.step,  # type: ignore[arg-type]  # what a step returns is not looked at
        )
        fault = {"note": agreement.fault} if agreement.fault else {}
        return {
            "perplexity": quality.ppl,
            "delta_nll": quality.delta_nll,
            "delta_nll_se": quality.delta_nll_se,
            "kl": quality.kl,
            "quality_top1": quality.top1,
            **fault,
        }


def _variants(build: Build) -> dict[str, Variant | None]:
    """What multiplies in each role, as far as it can be measured alone: own variants and torch."""
    from roofgap.kernels.registry import get_variant

    own = get_variant(str(build.variant)) if build.weights == "w4" else None
    roles = ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down")
    found: dict[str, Variant | None] = dict.fromkeys(roles, own) if build.weights in ("w4", "bf16") else {}
    return found | {"head": own if build.head_w4 else None}
