"""`stacx plan`: memory, traffic and expected speed of a layout, or the layouts that fit, from formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from stacx_core.cli import plan_tables
from stacx_core.cli.options import json_option
from stacx_core.cli.output import print_json
from stacx_core.planning.layout import Layout
from stacx_core.planning.plan import Plan, Problem
from stacx_core.planning.refusal import check
from stacx_core.planning.search import scaling, search
from stacx_core.planning.shape import WELL_KNOWN, load_shape
from stacx_core.planning.work import Cluster, Workload

Command = TypeVar("Command", bound=Callable[..., Any])

COUNT = click.IntRange(min=1)


class Amount(click.FloatRange):
    """A finite number above 0."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no finite number", param, ctx)


AMOUNT = Amount()
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}

SIZES = (
    ("tensor", "--tensor-model-parallel-size", "--tp", "GPUs that share every matrix."),
    ("pipeline", "--pipeline-model-parallel-size", "--pp", "Stages that share the layers."),
    ("context", "--context-parallel-size", "--cp", "GPUs that share the tokens of a sample."),
    ("expert", "--expert-model-parallel-size", "--ep", "GPUs that share the experts."),
)
SWITCHES = (
    ("sequence_parallel", "sequence-parallel", "Split tokens over the tensor group between matrices."),
    ("distributed_optimizer", "use-distributed-optimizer", "Split optimizer states over data-parallel GPUs."),
    ("recompute", "gradient-checkpointing", "Recompute layers in the backward pass."),
)
MACHINE = (
    ("gpus_per_node", "--num-gpus-per-node", COUNT, "GPUs of a node."),
    ("memory_gb", "--gpu-memory-gb", AMOUNT, "Memory of a GPU, 1e9 bytes."),
    ("reserved_gb", "--reserved-memory-gb", click.FloatRange(min=0), "Of it, for CUDA, NCCL and fragmentation."),
    ("intra_node_gbs", "--intra-node-bandwidth", AMOUNT, "GB/s per GPU and direction within a node."),
    ("inter_node_gbs", "--inter-node-bandwidth", AMOUNT, "GB/s per GPU and direction between nodes."),
    ("peak_tflops", "--peak-tflops", AMOUNT, "Dense peak of a GPU in the compute dtype."),
    ("utilisation", "--utilisation", click.FloatRange(0, 1, min_open=True), "Share of it that kernels reach."),
)
WORK = (
    ("max_tokens_per_gpu", "--max-tokens-per-gpu", COUNT, "Most tokens of a micro-batch on a GPU."),
    ("sequence_length", "--sequence-length", COUNT, "Tokens of a sample, prompt and response."),
    ("global_batch_size", "--global-batch-size", COUNT, "Samples of an optimizer step."),
    ("overlap", "--data-parallel-overlap", click.FloatRange(0, 1), "Share of gradient reduction hidden by compute."),
)


def layout_options(command: Command) -> Command:
    """Add the sizes and switches of a layout, None where they are not given."""
    for name, flag, text in reversed(SWITCHES):
        command = click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)(command)
    for name, flag, short, text in reversed(SIZES):
        command = click.option(flag, short, name, type=COUNT, metavar="N", help=text)(command)
    return command


def number_options(command: Command) -> Command:
    """Add what is known or assumed of the machine and the work, with its defaults."""
    for rows, defaults in ((WORK, Workload()), (MACHINE, Cluster())):
        for name, flag, kind, text in reversed(rows):
            value = getattr(defaults, name)
            command = click.option(flag, name, type=kind, metavar="N", default=value, show_default=True, help=text)(
                command
            )
    return command


@click.command("plan")
@click.option("--model", required=True, help=f"Hugging Face folder, or {', '.join(WELL_KNOWN)}.")
@click.option("--gpus", type=COUNT, metavar="N", help="GPUs in all; unset means --num-nodes full nodes.")
@click.option("--num-nodes", type=COUNT, metavar="N", help="Nodes; 1 if --gpus is not given either.")
@layout_options
@click.option("--dtype", type=click.Choice(list(ELEMENT_BYTES)), default="bf16", show_default=True, help="Precision.")
@number_options
@click.option(
    "--rollout-engines", type=COUNT, metavar="N", default=1, show_default=True, help="Engines that get the weights."
)
@click.option(
    "--best", type=COUNT, metavar="N", default=5, show_default=True, help="How many of the layouts found to print."
)
@click.option("--scaling", "scale", is_flag=True, help="Plan 1, 2, 4 ... 1,024 GPUs.")
@json_option
@click.pass_context
def plan(ctx: click.Context, /, **given: Any) -> None:
    """Say what a layout of a model over GPUs needs, and how fast it should be.

    With a size of a layout, plans that one: sizes left out are 1, switches left out are off, and the rest of the GPUs
    is data parallel. Without any size, searches the layouts that fit, for the fastest. A layout that is impossible or
    does not fit is refused with the reason. Everything is a prediction from formulas; nothing is measured.
    """
    problem = Problem(
        load_shape(given["model"]),
        Workload(element=ELEMENT_BYTES[given["dtype"]], **{row[0]: given[row[0]] for row in WORK}),
        Cluster(**{row[0]: given[row[0]] for row in MACHINE}),
    )
    make = _planner(problem, given)
    if any(given[row[0]] for row in SIZES):
        _refuse(ctx, "with the sizes of a layout", "best")
    if given["scale"]:
        _refuse(ctx, "with --scaling, which plans 1 to 1,024 GPUs", "gpus", "num_nodes", "best", "rollout_engines")
        rows = scaling(lambda gpus: make(gpus)[0])
        _print(given["as_json"], plan_tables.scaling_document(problem, rows), plan_tables.print_scaling, problem, rows)
        return
    if given["gpus"] and given["num_nodes"]:
        raise click.UsageError("--gpus and --num-nodes both say how many GPUs there are; give one", ctx)
    gpus = given["gpus"] or (given["num_nodes"] or 1) * problem.cluster.gpus_per_node
    plans, engines = make(gpus), given["rollout_engines"]
    _print(given["as_json"], plan_tables.plans_document(plans, engines), plan_tables.print_plans, plans, engines)


def _refuse(ctx: click.Context, when: str, *names: str) -> None:
    """Refuse options that would be ignored."""
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect {when}; leave it out", ctx)


def _print(as_json: bool, document: dict[str, Any], show: Callable[..., None], *arguments: Any) -> None:
    if as_json:
        print_json(document)
    else:
        show(*arguments)


def _planner(problem: Problem, given: dict[str, Any]) -> Callable[[int], list[Plan]]:
    """What gives the plans for a number of GPUs: the layout that was asked for, or the best of all."""
    sizes = {row[0]: given[row[0]] for row in SIZES if given[row[0]]}
    switches = {row[0]: given[row[0]] for row in SWITCHES if given[row[0]] is not None}
    if not sizes:
        return lambda gpus: search(problem, gpus, given["best"], switches)
    return lambda gpus: [check(problem, Layout.over(gpus, **sizes, **switches))]
