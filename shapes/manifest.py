"""A manifest: every weight matrix that one decoded token reads, and where each number comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from roofgap.shapes.architecture import Architecture, Provenance
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.files import read_record, unknown_name
from roofgap.shapes.matrices import Evidence, Matrix, Record, Role, build_matrices, fuse
from roofgap.shapes.problem import Problem, XDtype, ZeroMode

__all__ = [
    "SCHEMA_FILE",
    "Architecture",
    "Evidence",
    "KVLayout",
    "Manifest",
    "Matrix",
    "Provenance",
    "Role",
    "build_manifest",
    "check_manifest",
    "list_manifests",
    "load_manifest",
    "manifest_json",
    "read_manifest",
]

SCHEMA_VERSION: Literal[1] = 1
SCHEMA_FILE = "manifest.schema.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHIPPED = Path(str(files("roofgap.shapes"))) / "manifests"


class KVLayout(Record):
    """The cache a token appends to: keys and values of shape [kv_heads, head_dim] in each layer."""

    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    values_per_token: int = Field(ge=1)


class Manifest(Record):
    """The shapes of one model.

    Attributes:
        schema_version: layout of this record, ``SCHEMA_VERSION``.
        model: name used on the command line and as the file's stem.
        title: name for people.
        source: where the numbers come from.
        revision: which release or file of it.
        note: what a reader must know before using the numbers.
        parameters: values in the whole model, a tied embedding counted once.
        architecture: the numbers.
        provenance: evidence for every number of ``architecture`` that is known.
        matrices: what a decoded token reads, in the order of use.
        kv: layout of the cache.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    title: str
    source: str
    revision: str
    note: str = ""
    parameters: int = Field(ge=1)
    architecture: Architecture
    provenance: dict[str, Evidence]
    matrices: tuple[Matrix, ...] = Field(min_length=1)
    kv: KVLayout

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not _NAME.fullmatch(self.model):
            raise RoofgapError(
                f"model name {self.model!r}",
                "must be letters, digits, '.', '_' or '-', beginning with a letter or digit",
                "choose another name",
            )
        return self

    @property
    def is_fused(self) -> bool:
        """Whether q|k|v and gate|up are joined."""
        return any(matrix.role in ("qkv", "gate_up") for matrix in self.matrices)

    def fused(self) -> Manifest:
        """The same model with q|k|v and gate|up joined along N: four matrices a layer instead of seven."""
        if self.is_fused:
            return self
        return self.model_copy(update={"matrices": fuse(self.matrices)})

    def matrix(self, role: Role) -> Matrix:
        """The matrix with that role.

        Raises:
            RoofgapError: this view has none.
        """
        for matrix in self.matrices:
            if matrix.role == role:
                return matrix
        raise RoofgapError(
            f"role {role!r}",
            f"not in {self.model}, which has {', '.join(matrix.role for matrix in self.matrices)}",
            "use one of those, or the fused view for qkv and gate_up",
        )

    def distinct_shapes(self) -> tuple[tuple[int, int], ...]:
        """The different (n, k) in the order of use."""
        return tuple(dict.fromkeys((matrix.n, matrix.k) for matrix in self.matrices))

    def problems(
        self,
        m: int = 1,
        group_size: int = 128,
        x_dtype: XDtype = "fp16",
        zero_mode: ZeroMode = "sym",
        fused: bool = False,
    ) -> list[tuple[Matrix, Problem]]:
        """Each matrix, the head included, as a product over ``m`` tokens."""
        matrices = (self.fused() if fused else self).matrices
        return [
            (
                matrix,
                Problem(
                    n=matrix.n,
                    k=matrix.k,
                    m=m,
                    group_size=group_size,
                    x_dtype=x_dtype,
                    zero_mode=zero_mode,
                    bias=matrix.bias,
                ),
            )
            for matrix in matrices
        ]


def build_manifest(
    model: str,
    architecture: Architecture,
    provenance: Mapping[str, Evidence],
    *,
    title: str,
    source: str,
    revision: str,
    note: str = "",
) -> Manifest:
    """Makes a manifest whose matrices and totals follow from ``architecture``.

    Raises:
        RoofgapError: a number without evidence, or a name that cannot be a file's.
    """
    missing = sorted(_known(architecture) - set(provenance))
    if missing:
        raise RoofgapError(
            f"{model}: {', '.join(missing)}", "every number needs a provenance", "add its source or equation"
        )
    return Manifest(
        model=model,
        title=title,
        source=source,
        revision=revision,
        note=note,
        parameters=architecture.parameters,
        architecture=architecture,
        provenance=dict(provenance),
        matrices=build_matrices(architecture, provenance),
        kv=_kv_layout(architecture),
    )


def check_manifest(manifest: Manifest) -> list[str]:
    """Contradictions between a manifest's numbers, one sentence each; empty if it agrees with itself."""
    architecture, found = manifest.architecture, []
    known = _known(architecture)
    found += [f"{field} has no provenance" for field in sorted(known - set(manifest.provenance))]
    found += [
        f"provenance names {field}, which is not a known number of the architecture"
        for field in sorted(set(manifest.provenance) - known)
    ]
    if manifest.parameters != architecture.parameters:
        found.append(
            f"parameters {manifest.parameters:,} differ from the architecture's {architecture.parameters:,}"
        )
    if manifest.kv != _kv_layout(architecture):
        found.append("the KV layout does not follow from layers, kv_heads and head_dim")
    if found:
        return found  # the provenance of matrices cannot be worked out
    expected = build_matrices(architecture, manifest.provenance)
    expected = fuse(expected) if manifest.is_fused else expected
    roles, wanted = [m.role for m in manifest.matrices], [m.role for m in expected]
    if roles != wanted:
        return [f"roles {', '.join(roles)} where the architecture gives {', '.join(wanted)}"]
    for have, want in zip(manifest.matrices, expected, strict=True):
        for field in Matrix.model_fields:
            if getattr(have, field) != getattr(want, field):
                found.append(
                    f"{have.role}: {field} {getattr(have, field)!r} where the architecture gives "
                    f"{getattr(want, field)!r}"
                )
    return found


def list_manifests() -> list[str]:
    """Names of the manifests that are shipped, sorted by family and size."""
    stems = [
        entry.name.removesuffix(".json")
        for entry in _SHIPPED.iterdir()
        if entry.name.endswith(".json") and entry.name != SCHEMA_FILE
    ]
    return sorted(
        stems, key=lambda stem: [(not part[:1].isdigit(), _leading(part), part) for part in stem.split("-")]
    )


def read_manifest(name_or_path: str | Path) -> Manifest:
    """Reads a shipped manifest by name, or a file, without asking whether its numbers agree.

    Raises:
        RoofgapError: no such manifest, or not one.
    """
    text = str(name_or_path)
    shipped = text in list_manifests()
    path = _SHIPPED / f"{text}.json" if shipped else Path(name_or_path)
    if not path.is_file():
        raise unknown_name("manifest", text, list_manifests())
    return read_record(path, Manifest, "make it anew with `roofgap shapes extract`")


def load_manifest(name_or_path: str | Path) -> Manifest:
    """Reads a shipped manifest by name, or a file, and refuses one that contradicts itself.

    Raises:
        RoofgapError: no such manifest, not one, or one whose numbers disagree.
    """
    manifest = read_manifest(name_or_path)
    contradictions = check_manifest(manifest)
    if contradictions:
        raise RoofgapError(
            f"manifest {str(name_or_path)!r}", contradictions[0], "see all of it with `roofgap shapes check`"
        )
    return manifest


def manifest_json(manifest: Manifest) -> str:
    """Canonical text: the same manifest always gives the same bytes."""
    return json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def _known(architecture: Architecture) -> set[str]:
    return {name for name, value in architecture if value is not None}


def _kv_layout(architecture: Architecture) -> KVLayout:
    return KVLayout(
        layers=architecture.layers,
        kv_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        values_per_token=architecture.kv_values_per_token,
    )


def _leading(part: str) -> float:
    match = re.match(r"\d+(\.\d+)?", part)
    return float(match[0]) if match else 0.0
