"""An arm made ready to be timed: built, checked against its own weights, captured, its cache filled, warm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from roofgap.e2e.arms import Arm, Build
from roofgap.e2e.decoder import Advance, CapturedStep, Decoder, capacity_for
from roofgap.e2e.models import ModelSource
from roofgap.e2e.reference import Agreement, compare_logits, reference_logits
from roofgap.e2e.stream_arm import prepare_stream, tensor_bytes
from roofgap.e2e.swap import Built, build_model
from roofgap.shapes.accounting import TokenBytes, honest
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import ZeroMode
from roofgap.tuning.measure.device import Device

if TYPE_CHECKING:
    from roofgap.shapes.accounting import WeightFormat

GATE_PROMPT = 16
WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How arms are compared.

    Attributes:
        depth: positions in the cache before the first timed token.
        steps: timed tokens of a repetition; arms that the host paces get an eighth, at least eight.
        repeats: repetitions; arms that the host paces get half, at least five.
        group_size: weights along K that share a scale, of own and peers' 4-bit formats.
        zero_mode: of own formats.
        gate_steps: teacher-forced tokens that are compared with the reference before anything is timed.
        seed: of prompt and order.

    Raises:
        RoofgapError: a count below its least value.
    """

    depth: int = 512
    steps: int = 128
    repeats: int = 10
    group_size: int = 128
    zero_mode: ZeroMode = "asym"
    gate_steps: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("steps", 1), ("repeats", 2), ("gate_steps", 1)):
            if getattr(self, name) < least:
                raise RoofgapError(f"{name}={getattr(self, name)}", f"must be at least {least}", "raise it")

    def steps_of(self, arm: Arm) -> int:
        """Tokens of one repetition."""
        return min(self.steps, max(8, self.steps // 8)) if arm.is_slow else self.steps

    def repeats_of(self, arm: Arm) -> int:
        """Repetitions."""
        return min(self.repeats, max(5, self.repeats // 2)) if arm.is_slow else self.repeats

    def read_by(self, source: ModelSource, arm: Arm) -> TokenBytes:
        """Bytes of a token at the mean context of the timed ones."""
        weights, head = arm.build.formats(self.group_size, self.zero_mode)
        manifest = source.manifest.fused() if arm.build.fused_linears else source.manifest
        context = self.depth + (self.steps_of(arm) + 1) // 2
        return honest(manifest, weights, head, context=context)

    def formats(self, build: Build) -> tuple[WeightFormat, WeightFormat]:
        """Formats of linears and head."""
        return build.formats(self.group_size, self.zero_mode)


@dataclass(slots=True, kw_only=True)
class PreparedArm:
    """What is timed, and what must be known to judge it.

    Attributes:
        arm: the arm.
        run: one repetition of ``steps`` tokens.
        step: one token, for a profiler; None where there is no such thing.
        reset: called before each repetition, untimed.
        steps: tokens of a repetition.
        repeats: wanted repetitions.
        read: bytes of a token.
        built: the model, None for a stream arm.
        decoder: its loop, None for a stream arm.
        agreement: what the gate found, None where it does not apply.
        prefill_ms: time of the prefill.
        memory_bytes: tensors of model and cache.
        launches: nodes of the captured graph, None without one.
    """

    arm: Arm
    run: Callable[[], object]
    step: Callable[[], object] | None
    reset: Callable[[], object]
    steps: int
    repeats: int
    read: TokenBytes
    built: Built | None = None
    decoder: Decoder | None = None
    agreement: Agreement | None = None
    prefill_ms: float | None = None
    memory_bytes: int | None = None
    launches: int | None = None

    def release(self) -> None:
        """Lets go of the model, the cache and the graph; what was measured stays."""
        self.built = self.decoder = self.step = None
        self.run = self.reset = _nothing


def _nothing() -> None:
    return None


class Workshop:
    """Prepares arms of one model on one device; equal builds share a model and its reference.

    Args:
        source: the model.
        device: where.
        options: how.
        built: models that are there already, by build; new ones are added.
    """

    def __init__(
        self, source: ModelSource, device: Device, options: Options, built: dict[Build, Built] | None = None
    ) -> None:
        self.source, self.device, self.options = source, device, options
        self._built: dict[Build, Built] = {} if built is None else built
        self._reference: dict[tuple[str, bool], torch.Tensor] = {}
        random = torch.Generator().manual_seed(options.seed)
        length = max(options.depth, GATE_PROMPT + options.gate_steps)
        vocab = source.manifest.architecture.vocab
        self.tokens = torch.randint(vocab, (1, length), generator=random).to(device.torch_device)

    def prepare(self, arm: Arm) -> PreparedArm:
        """Builds, gates, captures, fills and warms up.

        Raises:
            RoofgapError: the arm cannot be built, is not captured whole, or its logits are not those of its weights.
            Exception: whatever a kernel or a peer raises.
        """
        return self._stream(arm) if arm.loop == "stream" else self._decoding(arm)

    def _stream(self, arm: Arm) -> PreparedArm:
        options = self.options
        manifest = self.source.manifest.fused() if arm.build.fused_linears else self.source.manifest
        read = options.read_by(self.source, arm)
        weights, head = options.formats(arm.build)
        sizes = tensor_bytes(manifest, weights, head, read)
        stream = prepare_stream(sizes, self.device)
        return PreparedArm(
            arm=arm,
            run=_repeat(stream.graph.replay, options.steps),
            step=stream.graph.replay,
            reset=_nothing,
            steps=options.steps,
            repeats=options.repeats,
            read=read,
            memory_bytes=sum(sizes),
            launches=stream.launches,
        )

    def _decoding(self, arm: Arm) -> PreparedArm:
        options, device = self.options, self.device
        built = self._build(arm.build)
        steps = options.steps_of(arm)
        needed = max(options.depth + steps, GATE_PROMPT + options.gate_steps)
        decoder = Decoder(built.model, capacity_for(needed, 0), _advance_of(arm.build))
        prompt = self.tokens[:, : options.depth]
        ready = PreparedArm(
            arm=arm,
            run=lambda: decoder.generate(prompt, steps),
            step=None,
            reset=_nothing,
            steps=steps,
            repeats=options.repeats_of(arm),
            read=options.read_by(self.source, arm),
            built=built,
            decoder=decoder,
        )
        if arm.loop != "generate":
            graph = self._gate(ready, decoder)
            start = perf_counter()
            decoder.prefill(prompt)
            device.synchronise()
            step: Callable[[], None] = graph.replay if graph else decoder.step
            ready.prefill_ms = 1e3 * (perf_counter() - start)
            ready.step, ready.reset, ready.run = step, decoder.rewind, _repeat(step, steps)
            ready.launches = graph.nodes if graph else None
        ready.memory_bytes = built.stored_bytes + decoder.capacity * int(
            self.source.manifest.architecture.kv_bytes_per_token()
        )
        for _ in range(1 if arm.is_slow else WARM_UPS):
            ready.reset()
            ready.run()
        device.synchronise()
        return ready

    def _build(self, build: Build) -> Built:
        if build not in self._built:
            options = self.options
            self._built[build] = build_model(
                self.source,
                build,
                self.device.torch_device,
                group_size=options.group_size,
                zero_mode=options.zero_mode,
            )
        return self._built[build]

    def _reference_of(self, build: Build, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the fp32 reference; variants of one format share them."""
        key = (build.weights, build.head_w4)
        if key not in self._reference:
            options = self.options
            self._reference[key] = reference_logits(
                self.source, build, tokens, group_size=options.group_size, zero_mode=options.zero_mode
            )
        return self._reference[key]

    def _gate(self, ready: PreparedArm, decoder: Decoder) -> CapturedStep | None:
        """Scores the step that will be timed, before it is timed."""
        arm, steps = ready.arm, self.options.gate_steps
        tokens = self.tokens[:, : GATE_PROMPT + steps]
        decoder.prefill(tokens[:, :GATE_PROMPT])
        if arm.loop == "inductor":
            decoder.compile()
        graph = None if arm.loop == "eager" else decoder.capture(self.device, pdl=arm.pdl)
        logits = decoder.forced(graph.replay if graph else decoder.step, tokens[0, GATE_PROMPT:])
        ready.agreement = compare_logits(logits, self._reference_of(arm.build, tokens)[GATE_PROMPT:])
        if ready.agreement.fault:
            raise RoofgapError(
                arm.name, ready.agreement.fault, "find the kernel or the weights that are wrong"
            )
        return graph


def _advance_of(build: Build) -> Advance | None:
    if not build.fused_operators:
        return None
    from roofgap.e2e.fused.argmax import next_token

    return next_token


def _repeat(step: Callable[[], object], count: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(count):
            step()

    return run
