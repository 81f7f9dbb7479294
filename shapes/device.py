"""Device profiles: what one GPU can do, number by number, each with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.files import read_record, unknown_name, write_text

FOLDER = Path(__file__).parent / "devices"
SCHEMA_FILE = FOLDER / "device.schema.json"

Count = Annotated[int, Field(gt=0, strict=True)]
Quantity = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]

# What needs a source. ``measured`` carries its own.
NUMBERS = (
    "sm_count",
    "boost_clock_mhz",
    "warp_size",
    "max_warps_per_sm",
    "registers_per_sm",
    "shared_bytes_per_sm",
    "shared_bytes_per_block",
    "l2_bytes",
    "l3_bytes",
    "memory_bytes",
    "spec_read_gbps",
    "fp16_tflops",
    "bf16_tflops",
    "fp8_tflops",
    "int8_tops",
)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A memory bandwidth in GB/s (1e9 bytes) and where it comes from."""

    gbps: float
    source: Literal["measured read", "measured copy", "spec", "given"]

    def __post_init__(self) -> None:
        if not 0 < self.gbps < float("inf"):
            raise RoofgapError(
                f"bandwidth={self.gbps}", "must be a finite number above 0", "give GB/s, for example 323.88"
            )


class Measured(BaseModel):
    """What was timed on the device. A missing number was not measured.

    Attributes:
        provenance: ``measured`` by ``roofgap device measure``, or ``published`` by someone else.
        read_gbps: read-only bandwidth, GB/s.
        copy_gbps: copy bandwidth, bytes read plus bytes written, GB/s.
        launch_floor_us: one empty kernel among many inside a CUDA graph.
        sm_clock_mhz: median SM clock while measuring.
        memory_clock_mhz: median memory clock while measuring.
        date: ISO date, where known.
        versions: driver, CUDA, torch, Triton.
        method: how it was measured or who published it, in a sentence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    provenance: Literal["measured", "published"]
    read_gbps: Quantity | None = None
    copy_gbps: Quantity | None = None
    launch_floor_us: Quantity | None = None
    sm_clock_mhz: Quantity | None = None
    memory_clock_mhz: Quantity | None = None
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    versions: dict[str, str] = {}
    method: Annotated[str, Field(min_length=1)]


class DeviceProfile(BaseModel):
    """One GPU. Specifications may be unknown (None); a null never means zero.

    Attributes:
        name: file name and the name to ask for, e.g. ``h200``.
        title: the vendor's full name.
        aliases: other names, among them what torch reports.
        target: what a compiler is asked for, e.g. ``sm_86`` or ``gfx942``.
        compute_capability: as torch reports it, e.g. ``8.6``.
        sm_count: streaming multiprocessors (compute units on AMD).
        boost_clock_mhz: highest advertised SM clock.
        warp_size: lanes that execute together (a wavefront on AMD).
        max_warps_per_sm: resident warps.
        registers_per_sm: 32-bit registers.
        shared_bytes_per_sm: shared memory (LDS) of one SM.
        shared_bytes_per_block: most that one block may have, after opting in.
        l2_bytes: L2 cache of the whole device.
        l3_bytes: memory-side cache behind L2 (Infinity Cache), where there is one.
        memory_bytes: device memory.
        spec_read_gbps: specified memory bandwidth, GB/s (1e9).
        fp16_tflops: dense fp16 tensor throughput, fp32 accumulation, 1e12 operations/s (multiply-add: two).
        bf16_tflops: the same for bf16.
        fp8_tflops: the same for fp8 with fp32 accumulation, where there is one.
        int8_tops: dense int8 tensor throughput with int32 accumulation, 1e12 operations/s.
        sources: source -> names of the numbers that it gives. Every number has exactly one.
        measured: what was timed, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    title: str
    aliases: tuple[str, ...] = ()
    vendor: Literal["nvidia", "amd"]
    target: Annotated[str, Field(pattern=r"^(sm_\d+a?|gfx[0-9a-f]+)$")]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    sm_count: Count
    boost_clock_mhz: Quantity
    warp_size: Count
    max_warps_per_sm: Count
    registers_per_sm: Count
    shared_bytes_per_sm: Count
    shared_bytes_per_block: Count
    l2_bytes: Count
    l3_bytes: Count | None = None
    memory_bytes: Count
    spec_read_gbps: Quantity | None = None
    fp16_tflops: Quantity | None = None
    bf16_tflops: Quantity | None = None
    fp8_tflops: Quantity | None = None
    int8_tops: Quantity | None = None
    sources: Mapping[Annotated[str, Field(min_length=1)], tuple[str, ...]]
    measured: Measured | None = None

    @model_validator(mode="after")
    def _every_number_has_one_source(self) -> DeviceProfile:
        named = [field for fields in self.sources.values() for field in fields]
        present = [field for field in NUMBERS if getattr(self, field) is not None]
        if sorted(named) != sorted(present):
            wrong = sorted(
                {field for field in (*named, *present) if named.count(field) != (field in present)}
            )
            raise ValueError(f"every number needs exactly one source; look at {', '.join(wrong)}")
        return self

    def source_of(self, field: str) -> str | None:
        """The source of one number, None where the number is unknown."""
        return next((source for source, fields in self.sources.items() if field in fields), None)

    def bandwidth(self) -> Bandwidth:
        """The best-founded bandwidth: measured read, else measured copy, else the specification.

        Raises:
            RoofgapError: the profile has none of them.
        """
        if self.measured and self.measured.read_gbps:
            return Bandwidth(self.measured.read_gbps, "measured read")
        if self.measured and self.measured.copy_gbps:
            return Bandwidth(self.measured.copy_gbps, "measured copy")
        if self.spec_read_gbps:
            return Bandwidth(self.spec_read_gbps, "spec")
        raise RoofgapError(
            f"device {self.name}",
            "has no bandwidth, measured or specified",
            "run `roofgap device measure` on it",
        )

    @property
    def launch_floor_us(self) -> float | None:
        """Measured time of an empty kernel inside a graph, in microseconds."""
        return self.measured.launch_floor_us if self.measured else None

    @property
    def last_level_cache_bytes(self) -> int:
        """What a buffer must exceed to be read from memory: the larger of L2 and L3."""
        return max(self.l2_bytes, self.l3_bytes or 0)

    def save(self, path: Path) -> None:
        """Writes the profile as JSON, whole or not at all.

        Raises:
            RoofgapError: the folder cannot be written to.
        """
        write_text(path, self.model_dump_json(indent=2) + "\n")


def list_devices() -> list[DeviceProfile]:
    """The shipped profiles, by name."""
    return [_read(path) for path in _shipped()]


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """A profile by name, by alias (letter case and punctuation do not matter) or from a ``.json`` file.

    Raises:
        RoofgapError: nothing has this name (lists what does), or the file is not a profile.
    """
    text = str(name_or_path)
    if text.endswith(".json") or "/" in text:
        return _read(Path(text))
    profiles = list_devices()
    for profile in profiles:
        if _plain(text) in {_plain(known) for known in (profile.name, profile.title, *profile.aliases)}:
            return profile
    raise unknown_name("device", text, (profile.name for profile in profiles))


def choose_bandwidth(gbps: float | None, device: str | None) -> tuple[Bandwidth, DeviceProfile | None]:
    """The bandwidth to use, and the profile if one was named. A figure given by hand wins over the profile's.

    Raises:
        RoofgapError: neither was given, the figure is not finite and positive, or the device is not known.
    """
    profile = load_device(device) if device is not None else None
    if gbps is not None:
        return Bandwidth(gbps, "given"), profile
    if profile is None:
        raise RoofgapError("no bandwidth", "a roof needs one", "give --bandwidth GB/s or --device NAME")
    return profile.bandwidth(), profile


def _shipped() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.json") if path != SCHEMA_FILE)


def _read(path: Path) -> DeviceProfile:
    return read_record(
        path, DeviceProfile, "write it with `roofgap device measure` or correct it by device.schema.json"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
