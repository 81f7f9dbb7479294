"""A live worker process of one commit, spoken to in JSON lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from roofgap.tracking.gate.checkout import Checkout

EVIDENCE_CHARACTERS = 1500


class WorkerDiedError(Exception):
    """The process ended or was ended; the message says how, with the end of what it printed."""


class LiveWorker:
    """One process for as many requests as there are; started at the first, and anew at the first after a death.

    Args:
        checkout: the commit that it imports.
        suite: the folder that holds ``benchmarks``.
        interpret: whether kernels are interpreted, which Triton decides when it imports them.
    """

    def __init__(self, checkout: Checkout, suite: Path, *, interpret: bool) -> None:
        self.checkout, self._suite, self._interpret = checkout, suite, interpret
        self._process: subprocess.Popen[bytes] | None = None
        self._log = checkout.venv.parent / f"worker-{'interpret' if interpret else 'device'}.log"

    def __enter__(self) -> LiveWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            WorkerDiedError: there was none; the process is gone, the next request starts another.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(f"ended with {process.wait()}") from None
        return self._answer(process, timeout_s)

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        hidden = {"PYTHONPATH", "TRITON_INTERPRET", "ROOFGAP_WINNERS", "ROOFGAP_STRICT"}
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment["ASV_ENV_DIR"] = str(self.checkout.venv)  # the suite refuses any other roofgap
        if self._interpret:
            environment["ROOFGAP_GATE_INTERPRET"] = "1"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.checkout.python), "-m", "benchmarks._worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self._suite,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        deadline, line = time.monotonic() + timeout_s, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._died(f"gave no answer within {timeout_s:g} s")
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise self._died(f"ended with {process.wait()}")
            line += chunk
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, how: str) -> WorkerDiedError:
        self.stop()
        printed = self._log.read_text(errors="replace").strip()[-EVIDENCE_CHARACTERS:]
        return WorkerDiedError(
            f"the worker of {self.checkout.commit[:10]} {how}" + (f": {printed}" if printed else "")
        )


def cells_of(worker: LiveWorker, lane: str) -> Sequence[tuple[str, ...]]:
    """The grid of a lane."""
    return [tuple(cell) for cell in worker.ask("cells", 60.0, lane=lane)["cells"]]
