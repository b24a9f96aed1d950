"""Finding layouts: the fastest that fit, and how they scale with the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from stacx_core.errors import ConfigError
from stacx_core.planning.fit import divisors, refusals
from stacx_core.planning.layout import Layout
from stacx_core.planning.plan import Plan, Problem, fits, fullest, predict

GPU_COUNTS = tuple(2**power for power in range(11))
"""1 to 1,024."""


Switches = Mapping[str, bool]
"""Fields of `Layout` that are fixed, for a search."""


def candidates(problem: Problem, gpus: int, switches: Switches) -> Iterator[Layout]:
    """Every possible layout of some GPUs, with TP within a node.

    Switches that are not fixed: sequence parallelism goes with TP, the distributed optimizer with more than one GPU,
    and layers are recomputed or not.
    """
    return (layout for layout in _layouts(problem, gpus, switches) if next(_refusals(problem, layout), None) is None)


def _layouts(problem: Problem, gpus: int, switches: Switches) -> Iterator[Layout]:
    """The same, with those that are impossible."""
    for sizes in _sizes(problem, gpus):
        usual = replace(sizes, sequence_parallel=sizes.tensor > 1, distributed_optimizer=gpus > 1)
        layouts = (replace(usual, **{"recompute": recompute, **switches}) for recompute in (False, True))
        yield from dict.fromkeys(layouts)


def _refusals(problem: Problem, layout: Layout) -> Iterator[str]:
    return refusals(problem.shape, layout, problem.work, problem.cluster)


def _sizes(problem: Problem, gpus: int) -> Iterator[Layout]:
    shape = problem.shape
    for tensor in divisors(math.gcd(gpus, shape.kv_heads)):
        if tensor > problem.cluster.gpus_per_node:
            continue
        for pipeline in divisors(math.gcd(gpus // tensor, shape.layers)):
            experts = divisors(math.gcd(gpus // pipeline, shape.experts)) if shape.experts else [1]
            for context, expert in product(divisors(gpus // (tensor * pipeline)), experts):
                yield Layout.over(gpus, tensor=tensor, pipeline=pipeline, context=context, expert=expert)


def search(problem: Problem, gpus: int, most: int, switches: Switches) -> list[Plan]:
    """The layouts that fit, the fastest first; of equally fast ones that which needs less memory.

    Raises:
        ConfigError: None fits; says which comes closest, and on how many GPUs one would fit.
    """
    possible = list(candidates(problem, gpus, switches))
    plans = [predict(problem, layout) for layout in possible if fits(problem, layout)]
    if not plans:
        raise ConfigError(_nothing_fits(problem, gpus, possible, switches), *_enough(problem, gpus, switches))
    return sorted(plans, key=lambda plan: (plan.time.total, plan.memory.total))[:most]


def _nothing_fits(problem: Problem, gpus: int, possible: Sequence[Layout], switches: Switches) -> str:
    where = f"no layout of {problem.shape.name} on {gpus} GPU(s)"
    if not possible:
        nearest = min((list(_refusals(problem, layout)) for layout in _layouts(problem, gpus, switches)), key=len)
        return f"{where} is possible: {nearest[0]}"
    smallest = min(possible, key=lambda layout: fullest(problem, layout)[1].total)
    needed = fullest(problem, smallest)[1].total / 1e9
    return (
        f"{where} fits into {problem.cluster.memory_gb:g} GB; {smallest.describe()} comes closest with {needed:.1f} GB"
    )


def _enough(problem: Problem, gpus: int, switches: Switches) -> list[str]:
    for more in (count for count in GPU_COUNTS if count > gpus):
        if any(fits(problem, layout) for layout in candidates(problem, more, switches)):
            return [f"{more} GPUs are enough"]
    return ["no power of two up to 1,024 GPUs is enough"]


@dataclass(frozen=True)
class Scale:
    """One number of GPUs: its plan, or why there is none, and the efficiency.

    Args:
        reason: why there is no plan, in full.
        efficiency: tokens per second and GPU over those of the fewest GPUs that have a plan.
    """

    gpus: int
    plan: Plan | None
    reason: str = ""
    efficiency: float | None = None


def scaling(make: Callable[[int], Plan]) -> list[Scale]:
    """The plan for each of `GPU_COUNTS`; `make` raises `ConfigError` where there is none."""
    found: list[Scale] = []
    base: float | None = None
    for gpus in GPU_COUNTS:
        try:
            plan = make(gpus)
        except ConfigError as error:
            found.append(Scale(gpus, None, error.message))
            continue
        rate = plan.tokens_per_second / gpus
        base = base or rate
        found.append(Scale(gpus, plan, efficiency=rate / base))
    return found
