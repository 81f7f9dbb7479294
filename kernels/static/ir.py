"""The printed form of Triton IR as definitions, loops and stores: as much of the syntax as addresses need."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_DEFINITION = re.compile(r"^\s*(?P<names>%[\w.\-]+(?::\d+)?) = \"?(?P<op>[\w.]+)\"?(?P<rest>.*)$")
_STORE = re.compile(r"^\s*\"?tt\.store\"? (?P<rest>.*)$")
_FOR = re.compile(
    r"scf\.for %(?P<iv>[\w.\-]+) = (?P<lower>%[\w.\-#]+) to (?P<upper>%[\w.\-#]+) step (?P<step>%[\w.\-#]+)"
)
_ITER_ARGS = re.compile(r"iter_args\((?P<pairs>[^)]*)\) -> \((?P<types>[^()]*)\)")
_RESULT = re.compile(r"^\s*(?P<name>%[\w.\-]+)(?P<many>:\d+)? = ")
_TEXTS = re.compile(r'"[^"]*"')
_ATTRIBUTES = re.compile(r"\{[^{}]*\}")
_VALUE = re.compile(r"%[\w.\-]+(?:#\d+)?")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<\w+>|\w+)")
_ELEMENT_BITS = re.compile(r"!tt\.ptr<[a-z]+(\d+)")


class CannotEvaluateError(Exception):
    """An address depends on something that is not integer arithmetic on known values."""


@dataclass(slots=True)
class Loop:
    """A ``scf.for`` (or a ``scf.while``, whose bounds stay None)."""

    parent: Loop | None
    lower: str | None = None
    upper: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One line that defines a value."""

    op: str
    operands: tuple[str, ...]
    text: str
    line: int
    loop: Loop | None


@dataclass(slots=True)
class Module:
    """The kernel function: definitions by value name, arguments in order, stores."""

    arguments: list[str] = field(default_factory=list)
    definitions: dict[str, Operation] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    """Loop counters and iter_args by their first value; a pointer that leaves a loop by the one that entered it, for
    which all addresses of a later loop move alike."""
    stores: list[Operation] = field(default_factory=list)


def parse_module(text: str) -> Module:
    """Reads the printed form of a module with one function. Lines are numbered from 1."""
    module = Module()
    loops: list[tuple[int, Loop]] = []
    depth = 0
    for number, line in enumerate(text.splitlines(), start=1):
        loop = loops[-1][1] if loops else None
        if "tt.func" in line:
            module.arguments = re.findall(r"(%[\w.\-]+): ", line)
        elif "scf.for" in line or "scf.while" in line:
            loop = _open_loop(module, line, loop)
            loops.append((depth, loop))
        elif match := _DEFINITION.match(line):
            name, rest = match["names"].split(":")[0], match["rest"]
            module.definitions[name] = Operation(match["op"], _operands(rest), rest, number, loop)
        elif match := _STORE.match(line):
            module.stores.append(Operation("tt.store", _operands(match["rest"]), match["rest"], number, loop))
        bare = _TEXTS.sub("", line)  # without assembly, which has braces of its own
        depth += bare.count("{") - bare.count("}")
        while loops and depth <= loops[-1][0]:
            loops.pop()
    return module


def _operands(rest: str) -> tuple[str, ...]:
    """Values before the types; texts and attributes name none."""
    return tuple(_VALUE.findall(_ATTRIBUTES.sub("", _TEXTS.sub("", rest)).split(" : ")[0]))


def _open_loop(module: Module, line: str, parent: Loop | None) -> Loop:
    if carried := _ITER_ARGS.search(line):
        result = _RESULT.match(line)
        pairs = zip(carried["pairs"].split(", "), carried["types"].split(", "), strict=True)
        for index, (pair, kind) in enumerate(pairs):
            name, _, value = pair.partition(" = ")
            module.aliases[name] = value
            if result and "!tt.ptr" in kind:
                module.aliases[f"{result['name']}#{index}" if result["many"] else result["name"]] = value
    match = _FOR.search(line)
    if match is None:
        return Loop(parent)
    module.aliases[f"%{match['iv']}"] = match["lower"]
    return Loop(parent, match["lower"], match["upper"], match["step"])


def shape_of(text: str) -> tuple[int, ...]:
    """Shape of the first tensor type, () for a scalar."""
    match = _TENSOR.search(text)
    return tuple(int(size) for size in match[1].split("x") if size) if match else ()


def element_bytes(text: str) -> int:
    """Bytes of what the first pointer type points to."""
    match = _ELEMENT_BITS.search(text)
    if match is None:
        raise CannotEvaluateError(f"the element type of {text.strip()[:60]}")
    return max(1, int(match[1]) // 8)
