"""Many seeds, several policies side by side: means with their 95 % confidence intervals, and the differences of pairs.

All policies see the same worlds (common random numbers), so a small difference shows although the seeds differ much.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.simulation.assumptions import Assumptions
from airflow_ft.simulation.blame import Accuracy
from airflow_ft.simulation.model import Result, simulate
from airflow_ft.simulation.trace import DAY, Trace
from airflow_ft.simulation.world import make_world

CONFIDENCE = 1.96  # standard errors: 95 %
# What is measured for each policy, as a number of one run.
MEASURES: dict[str, Callable[[Result, Assumptions], float]] = {
    "ettr": lambda result, _: result.ettr,
    "faults": lambda result, _: result.faults,
    "restarts": lambda result, _: result.restarts,
    "in_place": lambda result, _: result.in_place,
    "pages": lambda result, _: result.pages,
    "nodes_held": lambda result, assumed: result.held / (assumed.days * DAY),
    "healthy_nodes_held": lambda result, assumed: result.held_healthy / (assumed.days * DAY),
    "hours_waited_for_nodes": lambda result, _: result.waited / 3600,
    "hours_hung": lambda result, _: result.hung / 3600,
    "hours_of_work_lost": lambda result, _: result.lost / 3600,
}


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from independent values."""
        mean = sum(values) / len(values)
        if len(values) < 2:
            return cls(mean, mean, mean)
        error = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
        return cls(mean, mean - CONFIDENCE * error, mean + CONFIDENCE * error)


@dataclass(frozen=True)
class Study:
    """Everything that was simulated."""

    assumed: Assumptions
    seeds: int
    results: Mapping[str, tuple[Result, ...]]  # by the policy's name, one a seed

    def estimate(self, name: str, measure: str) -> Estimate:
        """Return one measure of one policy."""
        return Estimate.of([MEASURES[measure](result, self.assumed) for result in self.results[name]])

    def difference(self, name: str, other: str, measure: str = "ettr") -> Estimate:
        """Return by how much ``name`` is above ``other``, seed by seed."""
        of = MEASURES[measure]
        pairs = zip(self.results[name], self.results[other], strict=True)
        return Estimate.of([of(one, self.assumed) - of(two, self.assumed) for one, two in pairs])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = list(self.results)
        return {
            "version": 1,
            "seeds": self.seeds,
            "assumptions": self.assumed.model_dump(mode="json"),
            "policies": {
                name: {measure: asdict(self.estimate(name, measure)) for measure in MEASURES} for name in names
            },
            "ettr_above_the_one_before": {
                name: asdict(self.difference(name, before)) for before, name in itertools.pairwise(names)
            },
        }


def study(
    policies: Mapping[str, FaultTolerancePolicy], trace: Trace, assumed: Assumptions, accuracy: Accuracy, seeds: int
) -> Study:
    """Simulate every policy on ``seeds`` worlds."""
    results: dict[str, list[Result]] = {name: [] for name in policies}
    for seed in range(seeds):
        world = make_world(trace, assumed, seed)
        for name, policy in policies.items():
            results[name].append(simulate(policy, world, assumed, accuracy, seed))
    return Study(assumed, seeds, {name: tuple(found) for name, found in results.items()})


def side_by_side(max_restarts: int) -> dict[str, FaultTolerancePolicy]:
    """Return the policies that every comparison has, all with the same budget.

    ``blind`` is no policy at all: every fault pages a person.
    """
    return {
        "blind": FaultTolerancePolicy.off(),
        "basic": FaultTolerancePolicy.basic(max_restarts=max_restarts),
        "advanced": FaultTolerancePolicy.advanced(max_restarts=max_restarts),
        "full": FaultTolerancePolicy.full(max_restarts=max_restarts),
    }
