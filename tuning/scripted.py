"""A runner without a device: known latencies, noise, faults, and a clock that moves only when it is used.

Everything it answers is a function of the config and of which reading it is, never of the order of calls, so
an interrupted run that is resumed sees what an uninterrupted one sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.runner import Attainable
from roofgap.tuning.space import Space
from roofgap.tuning.status import Status
from roofgap.tuning.storage import digest
from roofgap.tuning.trial import Round, Trial, spread

COMPILE_S, CHECK_S, SAMPLE_S, REPETITIONS = 0.5, 0.01, 1e-3, 7


class ScriptedRunner:
    """Implements ``runner.Runner``.

    Args:
        latency_us: true latency of a config, in microseconds.
        noise: standard deviation of the logarithm of a reading, by config.
        faults: status and evidence by config key; the trial ends in it instead of a time.
        late_faults: evidence by config key; a config that is right at first and fails in the interleaved
            rounds.
        baselines_us: latency of each baseline.
        code: what a config compiles to; configs of equal code share a quarantine.
        compile_s: what compiling a config costs on the clock.
        seed: of the noise; another seed is another session on the same device.
    """

    def __init__(
        self,
        latency_us: Callable[[KernelConfig], float],
        *,
        noise: Callable[[KernelConfig], float] = lambda config: 0.0,
        faults: dict[str, tuple[Status, str]] | None = None,
        late_faults: dict[str, str] | None = None,
        baselines_us: dict[str, float] | None = None,
        code: Callable[[KernelConfig], str] = lambda config: config.key,
        compile_s: float = COMPILE_S,
        seed: int = 0,
    ) -> None:
        self.quarantine: dict[str, str] = {}
        self.launched: list[tuple[str, str]] = []
        self._latency, self._noise, self._seed = latency_us, noise, seed
        self._faults, self._late_faults = faults or {}, late_faults or {}
        self._baselines, self._compile_s = baselines_us or {}, compile_s
        self._code = code
        self._now = 0.0

    def begin(self, space: Space, timed: dict[str, str]) -> None:
        """Turns to a problem."""
        self._space = space

    def explore(self, configs: Sequence[KernelConfig]) -> Iterator[Trial]:
        """One trial per config, in the order given."""
        for config in configs:
            yield self._trial(config)

    def duel(self, contenders: Sequence[str], number: int) -> Round:
        """Reads every contender once."""
        failed = {name: self._late_faults[name] for name in contenders if name in self._late_faults}
        readings = tuple(None if name in failed else self._reading(name, number + 1) for name in contenders)
        self._now += SAMPLE_S * len(contenders)
        return Round(contenders=tuple(contenders), latency_us=readings, evidence=failed)

    def baselines(self) -> dict[str, str | None]:
        """The scripted ones; they can compute everything."""
        return dict.fromkeys(self._baselines)

    def attainable(self) -> Attainable:
        """Not known."""
        return Attainable()

    def clock(self) -> float:
        """Seconds of scripted work."""
        return self._now

    def close(self) -> None:
        """Nothing to free."""

    def _trial(self, config: KernelConfig) -> Trial:
        code_hash = digest(f"{self._space.problem.key} {self._code(config)}")
        values = config.to_dict()
        if code_hash in self.quarantine:
            return Trial(
                config=values,
                status=Status.QUARANTINED,
                evidence=self.quarantine[code_hash],
                code_hash=code_hash,
            )
        self.launched.append((self._space.problem.key, config.key))
        self._now += self._compile_s
        if config.key in self._faults:
            status, evidence = self._faults[config.key]
            return Trial(
                config=values,
                status=status,
                evidence=evidence,
                code_hash=code_hash,
                compile_s=self._compile_s,
            )
        p50, p20, p80 = spread([self._reading(config.key, -repetition) for repetition in range(REPETITIONS)])
        self._now += CHECK_S + SAMPLE_S * REPETITIONS
        return Trial(
            config=values,
            status=Status.OK,
            latency_us=p50,
            p20_us=p20,
            p80_us=p80,
            code_hash=code_hash,
            compile_s=self._compile_s,
            check_s=CHECK_S,
            measure_s=SAMPLE_S * REPETITIONS,
        )

    def _reading(self, name: str, number: int) -> float:
        if name.startswith("@"):
            return self._baselines[name[1:]]
        config = self._space.by_key[name]
        chance = Random(f"{self._seed} {self._space.problem.key} {name} {number}")
        return self._latency(config) * math.exp(chance.gauss(0.0, self._noise(config)))
