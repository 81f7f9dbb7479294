"""asv plug-in: GPU, driver, clocks, power limit and toolchain go into the machine file without a question.

asv keeps what a machine's file holds, extra keys included, copies it into every result and draws one line per
value: a new driver or another GPU under the same host name starts a new series. ``none`` stands for a machine
without a GPU, ``unavailable`` for what NVML does not tell.

Written against asv 0.6.6; wraps ``Machine.load``, through which every command gets its machine, and calls
``MachineCollection.save``.
"""

from __future__ import annotations

from typing import Any

from asv.machine import Machine, MachineCollection

from roofgap.tracking.describe import describe_extras


def setup() -> None:
    """Called by asv when it loads the plug-in."""
    if getattr(Machine.load, "describes_gpu", False):
        return
    original = Machine.load.__func__

    def load(cls: type[Machine], *args: Any, **kwargs: Any) -> Any:
        machine = original(cls, *args, **kwargs)
        machine.__dict__.update(describe_extras())
        MachineCollection.save(machine.machine, machine.__dict__, _path=kwargs.get("_path"))
        return machine

    load.describes_gpu = True  # type: ignore[attr-defined]
    Machine.load = classmethod(load)
