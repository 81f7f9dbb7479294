"""What became of a trial: one word, so that slow, wrong and crashed can never be confused in a table."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """Outcome of compiling, checking and timing one config. Only ``OK`` carries a latency."""

    OK = "ok"
    """Every output was right and the time is a measurement."""
    UNSUPPORTED = "unsupported"
    """The variant refuses the problem, or a package or GPU it needs is missing."""
    PRUNED = "pruned"
    """Refused before any launch: invalid for the problem, spills registers, or asks for too much shared
    memory.
    """
    DUPLICATE = "duplicate"
    """Compiles to the machine code of a config that was already timed; the evidence names that config."""
    COMPILE_ERROR = "compile_error"
    """The compiler refused the kernel and said why."""
    COMPILE_CRASH = "compile_crash"
    """The compiling process died (LLVM abort, ptxas fault)."""
    COMPILE_TIMEOUT = "compile_timeout"
    """Compilation took longer than the budget allows."""
    OUT_OF_RESOURCES = "out_of_resources"
    """The GPU cannot hold one program: shared memory, registers or threads."""
    OUT_OF_MEMORY = "out_of_memory"
    """Device memory did not hold the operands or a workspace."""
    WRONG = "wrong"
    """At least one output differs from the reference, was left unwritten, or was written out of bounds."""
    ILLEGAL_ACCESS = "illegal_access"
    """The kernel faulted on the device; the worker and its CUDA context were thrown away."""
    TIMEOUT = "timeout"
    """The kernel did not finish in time; the worker was killed."""
    CRASH = "crash"
    """The worker process died, or failed in a way that has no other name."""
    IMPLAUSIBLE = "implausible"
    """Faster than the memory can deliver the bytes, or the captured graph held no work."""
    QUARANTINED = "quarantined"
    """Not launched: the same machine code crashed, hung or faulted earlier; the evidence names when."""
    ERROR = "error"
    """The variant itself raised while its launch was prepared."""

    @property
    def poisons_worker(self) -> bool:
        """Whether the process that ran the trial must be replaced before the next one."""
        return self in (Status.ILLEGAL_ACCESS, Status.TIMEOUT, Status.CRASH)

    @property
    def quarantines(self) -> bool:
        """Whether the machine code must never be launched again in this run or its resumption."""
        return self.poisons_worker
