"""NVIDIA machine code: resources from cuobjdump, instructions from nvdisasm, both from Triton's wheel."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from roofgap.kernels.static.instructions import Instruction, Resources, resolve_branches
from roofgap.shapes.errors import RoofgapError

_INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)\s*(?P<args>[^;]*);"
)
_LINE = re.compile(r'//## File ".*", line (\d+)')
_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH_LABEL = re.compile(r"`\((\.L\w+)\)")
_RESOURCES = re.compile(
    r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)"
)

_KINDS: dict[str, str] = {
    mnemonic: kind
    for kind, mnemonics in {
        "load_global": "LDG LDGSTS LD UBLKCP UTMALDG",
        "store_global": "STG ST UTMASTG",
        "shared": "LDS LDSM STS STSM SHFL MOVM",
        "atomics": "ATOM ATOMG ATOMS RED REDG UTMAREDG",
        "tensor": "HMMA IMMA DMMA QMMA OMMA BMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
        "convert": "I2F I2FP F2I F2F F2FP F2IP I2I I2IP FRND",
        "fma": "FFMA FFMA2 FMUL FMUL2 FADD FADD2 FMNMX FSWZADD HFMA2 HADD2 HMUL2 HMNMX2 DFMA DADD DMUL IDP",
        "barrier": "BAR DEPBAR LDGDEPBAR WARPSYNC WARPGROUP SYNCS MEMBAR ERRBAR FENCE ARRIVES ACQBULK CCTL "
        "UTMACMDFLUSH CGAERRBAR UCGABAR_ARV UCGABAR_WAIT",
        "control": "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK BMOV YIELD NANOSLEEP ISETP FSETP HSETP2 "
        "DSETP PLOP3 PSETP P2R R2P UISETP UPLOP3 UP2UR UR2UP VOTE VOTEU ELECT",
        "spill": "LDL STL",
        "other": "NOP S2R S2UR CS2UR LDC LDCU ULDC R2UR PREEXIT MUFU PMTRIG SETCTAID",
    }.items()
    for mnemonic in mnemonics.split()
}

_INT_PIPE = frozenset(
    (
        "BMSK",
        "IADD3",
        "IMNMX",
        "ISETP",
        "LEA",
        "LOP3",
        "PLOP3",
        "PRMT",
        "SEL",
        "SGXT",
        "SHF",
        "VIADD",
        "VIMNMX",
    )
)


class ToolError(RoofgapError):
    """One of Triton's CUDA binary tools is missing or broken; no config can be inspected without it."""


def run_tool(name: str, *arguments: str | Path) -> str:
    """Output of one of the CUDA binary tools that Triton ships.

    Raises:
        ToolError: the tool is missing or fails.
    """
    import triton

    try:
        path = getattr(triton.knobs.nvidia, name).path
    except RuntimeError:
        raise ToolError(
            f"tool {name}",
            "not found in Triton's wheel",
            f"install triton >= 3.6 or set TRITON_{name.upper()}_PATH",
        ) from None
    done = subprocess.run(
        [path, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise ToolError(
            f"tool {name}", f"failed: {done.stderr.strip()[-400:]}", "check Triton's installation"
        )
    return done.stdout


def read_resources(cubin: Path) -> Resources:
    """Registers, local and declared shared memory of the only kernel in a cubin; on sm_90 and later the shared
    memory holds what the system keeps per block."""
    output = run_tool("cuobjdump", "--dump-resource-usage", cubin)
    match = _RESOURCES.search(output)
    if match is None:
        raise ToolError(
            "cuobjdump's output", f"has no resource line: {output[-200:]}", "report it with the CUDA version"
        )
    return Resources(
        registers=int(match["registers"]),
        spill_bytes=int(match["stack"]) + int(match["local"]),
        shared_bytes=int(match["shared"]),
    )


def disassemble(cubin: Path) -> str:
    """SASS with the IR line of each instruction. Without the dataflow analyser, which adds nothing here and a
    third to the time."""
    return run_tool("nvdisasm", "-c", "-g", "-ndf", cubin)


def strip_lines(listing: str) -> str:
    """SASS as people read it, without the line marks."""
    return "\n".join(line for line in listing.splitlines() if not _LINE.search(line)) + "\n"


def kind_of(opcode: str) -> str:
    """Class of a SASS opcode.

    ``HADD2.F32`` is how half is widened to float, hence a conversion. Everything that is not listed is
    integer work: IMAD, IADD3, LOP3, SHF, PRMT, LEA, SEL, MOV and their uniform twins.
    """
    if opcode.startswith("HADD2.F32"):
        return "convert"
    return _KINDS.get(opcode.split(".", maxsplit=1)[0], "alu")


def uses_int_pipe(opcode: str) -> bool:
    """Whether the 64-lane integer pipe runs it: adds, compares, logic, shifts. IMAD runs on the FMA pipe,
    uniform instructions and conversions elsewhere; moves may go either way and are left out."""
    return opcode.split(".", maxsplit=1)[0] in _INT_PIPE


def load_width(opcode: str) -> int:
    """Bytes per thread of a global load, asynchronous copies to shared memory included."""
    parts = opcode.split(".")
    if parts[0] not in ("LDG", "LDGSTS"):
        return 0
    for part in parts[1:]:
        if part in ("64", "128", "256"):
            return int(part) // 8
        if part in ("U8", "S8", "U16", "S16"):
            return int(part[1:]) // 8
    return 4


def parse(listing: str) -> list[Instruction]:
    """Instructions of the first kernel in ``disassemble``'s output."""
    labels: dict[str, int] = {}
    rows: list[tuple[str, str, int]] = []
    line = 0
    for text in listing.splitlines():
        if label := _LABEL.match(text.strip()):
            labels[label[1]] = len(rows)
        elif mark := _LINE.search(text):
            line = int(mark[1])
        elif match := _INSTRUCTION.search(text):
            rows.append((match["op"], match["args"], line))
    return resolve_branches(rows, labels, _branch_label, _build)


def _branch_label(opcode: str, operands: str) -> str | None:
    if opcode.split(".", maxsplit=1)[0] not in ("BRA", "BRX", "JMP"):
        return None
    match = _BRANCH_LABEL.search(operands)
    return match[1] if match else None


def _build(opcode: str, operands: str, line: int, target: int | None) -> Instruction:
    return Instruction(
        opcode=opcode, kind=kind_of(opcode), line=line, load_bytes=load_width(opcode), target=target
    )
