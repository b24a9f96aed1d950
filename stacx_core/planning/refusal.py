"""Layouts that are refused: why, and what would fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from stacx_core.errors import ConfigError
from stacx_core.planning.fit import refusals
from stacx_core.planning.layout import Layout
from stacx_core.planning.memory import Memory
from stacx_core.planning.plan import PART_NAMES, Plan, Problem, fits, fullest, predict
from stacx_core.planning.search import search
from stacx_core.planning.work import Workload


def check(problem: Problem, layout: Layout) -> Plan:
    """The plan of a layout.

    Raises:
        ConfigError: The layout is impossible, with every reason, or does not fit into memory, with what would fit.
    """
    reasons = list(refusals(problem.shape, layout, problem.work, problem.cluster))
    if reasons:
        raise ConfigError(reasons[0], *reasons[1:])
    stage, needed = fullest(problem, layout)
    if needed.total > problem.cluster.memory_gb * 1e9:
        raise ConfigError(too_large(problem, layout, stage, needed), *remedies(problem, layout))
    return predict(problem, layout)


def too_large(problem: Problem, layout: Layout, stage: int, needed: Memory) -> str:
    """How much too much, and the largest part."""
    where = f" on pipeline stage {stage}" if layout.pipeline > 1 else ""
    largest = needed.largest
    return (
        f"{layout.describe()} needs {needed.total / 1e9:.1f} GB of the "
        f"{problem.cluster.memory_gb:g} GB of a GPU{where}; the largest part are {PART_NAMES[largest]} with "
        f"{needed.parts()[largest] / 1e9:.1f} GB"
    )


def remedies(problem: Problem, layout: Layout, most: int = 5) -> list[str]:
    """The first changes that make a layout fit, as sentences: single ones, else pairs, else the best layout."""
    single = list(_changes(problem, layout))
    pairs = (
        (f"{first} {second}", twice, work)
        for first, once, between in single
        for second, twice, work in _changes(replace(problem, work=between), once)
    )
    for changes in (single, pairs):
        found = list(islice(_sentences(problem, changes), most))
        if found:
            return found
    gpus = layout.world_size
    try:
        (best,) = search(problem, gpus, 1, {})
    except ConfigError as error:
        return [error.message, *error.hints]
    return [f"on {gpus} GPU(s) {best.layout.describe()} would fit with {best.memory.total / 1e9:.1f} GB"]


def _sentences(problem: Problem, changes: Iterable[tuple[str, Layout, Workload]]) -> Iterator[str]:
    for flags, layout, work in changes:
        candidate = replace(problem, work=work)
        if fits(candidate, layout):
            yield f"with {flags} it needs {fullest(candidate, layout)[1].total / 1e9:.1f} GB"


def _changes(problem: Problem, layout: Layout) -> Iterator[tuple[str, Layout, Workload]]:
    """Flags and what they change: switches that are off, and each size and the token budget by factors of two."""
    work = problem.work
    if not layout.distributed_optimizer:
        yield "--use-distributed-optimizer", replace(layout, distributed_optimizer=True), work
    if not layout.recompute:
        yield "--gradient-checkpointing", replace(layout, recompute=True), work
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield "--sequence-parallel", replace(layout, sequence_parallel=True), work
    if work.max_tokens_per_gpu // 2 * layout.context >= work.sequence_length:
        half = work.max_tokens_per_gpu // 2
        yield f"--max-tokens-per-gpu {half}", layout, replace(work, max_tokens_per_gpu=half)
    for factor in (2, 4, 8, 16):
        for flag, changed in _larger(layout, factor):
            yield flag, changed, work


def _larger(layout: Layout, factor: int) -> Iterator[tuple[str, Layout]]:
    t, p, c, e = (factor * size for size in (layout.tensor, layout.pipeline, layout.context, layout.expert))
    if layout.data % factor == 0:
        fewer = replace(layout, data=layout.data // factor)
        with_sp = " --sequence-parallel" if not layout.sequence_parallel else ""
        yield f"--tensor-model-parallel-size {t}{with_sp}", replace(fewer, tensor=t, sequence_parallel=True)
        yield f"--pipeline-model-parallel-size {p}", replace(fewer, pipeline=p)
        yield f"--context-parallel-size {c}", replace(fewer, context=c)
    yield f"--expert-model-parallel-size {e}", replace(layout, expert=e)
