"""A plan: what a layout needs and how fast it should be."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.planning.fit import refusals, warnings
from stacx_core.planning.layout import Layout
from stacx_core.planning.memory import Memory, memory
from stacx_core.planning.parameters import RankParameters, rank_parameters
from stacx_core.planning.shape import ModelShape
from stacx_core.planning.step_time import StepTime, model_flops, step_time
from stacx_core.planning.work import Cluster, MicroBatches, Workload, micro_batches

PART_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits and their gradient",
    "buffers": "communication buffers",
    "reserved": "CUDA, NCCL, fragmentation",
}
"""Part of the memory -> its name in tables and messages."""


@dataclass(frozen=True)
class Problem:
    """A model, what it is given to do, and on what."""

    shape: ModelShape
    work: Workload
    cluster: Cluster


@dataclass(frozen=True)
class Plan:
    """What a layout needs and how fast it should be.

    Args:
        parameters, memory: of a rank of the fullest pipeline stage, whose number is `stage`.
        cut: micro-batches of a rank.
        time: of an optimizer step.
        warnings: what is possible and likely a mistake.
    """

    problem: Problem
    layout: Layout
    stage: int
    parameters: RankParameters
    memory: Memory
    cut: MicroBatches
    time: StepTime
    warnings: tuple[str, ...]

    @property
    def tokens_per_second(self) -> float:
        """Over all GPUs."""
        work = self.problem.work
        return work.global_batch_size * work.sequence_length / self.time.total

    @property
    def model_utilisation(self) -> float:
        """Model FLOPs utilisation: the model's operations over what all GPUs could do at their peak in that time."""
        peak = self.layout.world_size * self.problem.cluster.peak_tflops * 1e12
        return model_flops(self.problem.shape, self.problem.work) / self.time.total / peak


def fullest(problem: Problem, layout: Layout) -> tuple[int, Memory]:
    """The pipeline stage that needs most memory, and how much a rank of it needs."""
    stages = range(layout.pipeline)
    needs = [memory(problem.shape, layout, problem.work, problem.cluster, stage) for stage in stages]
    stage = max(stages, key=lambda stage: needs[stage].total)
    return stage, needs[stage]


def predict(problem: Problem, layout: Layout) -> Plan:
    """The plan of a layout for which `refusals` has no reason."""
    stage, needed = fullest(problem, layout)
    return Plan(
        problem=problem,
        layout=layout,
        stage=stage,
        parameters=rank_parameters(problem.shape, layout, stage),
        memory=needed,
        cut=micro_batches(layout, problem.work),
        time=step_time(problem.shape, layout, problem.work, problem.cluster),
        warnings=tuple(warnings(layout, problem.cluster)),
    )


def fits(problem: Problem, layout: Layout) -> bool:
    """Whether a layout is possible and no stage needs more memory than a GPU has."""
    if any(True for _ in refusals(problem.shape, layout, problem.work, problem.cluster)):
        return False
    return fullest(problem, layout)[1].total <= problem.cluster.memory_gb * 1e9
