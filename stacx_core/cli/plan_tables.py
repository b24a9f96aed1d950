"""What `stacx plan` prints: tables, and JSON documents with the same numbers in bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from stacx_core.cli.output import print_table, print_title
from stacx_core.planning.communication import combined, weight_sync
from stacx_core.planning.parameters import active_parameters, total_parameters
from stacx_core.planning.plan import PART_NAMES, Plan, Problem
from stacx_core.planning.search import Scale

NOTE = "Predicted from formulas under the assumptions above; nothing was measured."


def print_plans(plans: Sequence[Plan], engines: int) -> None:
    """Several plans in a table, if there are several, and the first in detail."""
    best = plans[0]
    print_problem(best.problem)
    if len(plans) > 1:
        print_title(f"Fastest layouts of {best.layout.world_size} GPU(s)")
        print_table(_HEADERS, [_row(plan) for plan in plans])
    print_title(f"{best.layout.describe()}: {best.layout.world_size} GPU(s)")
    for warning in best.warnings:
        click.echo(f"warning: {warning}")
    _print_memory(best)
    _print_traffic(best)
    _print_time(best)
    _print_sync(best, engines)
    click.echo(f"\n{NOTE}")


def print_problem(problem: Problem) -> None:
    """The model, the work and the machine, in three lines."""
    shape, work, cluster = problem.shape, problem.work, problem.cluster
    total, active = total_parameters(shape), active_parameters(shape)
    met = f", {active:,} of them per token" if active != total else ""
    click.echo(f"{shape.name}: {total:,} parameters{met}")
    click.echo(
        f"step: {work.global_batch_size:,} samples of {work.sequence_length:,} tokens, at most "
        f"{work.max_tokens_per_gpu:,} tokens per GPU, {work.element} bytes per element"
    )
    click.echo(
        f"machine: {cluster.gpus_per_node} GPUs per node, {cluster.memory_gb:g} GB ({cluster.reserved_gb:g} reserved), "
        f"{cluster.intra_node_gbs:g} and {cluster.inter_node_gbs:g} GB/s within and between nodes, "
        f"{cluster.utilisation:.0%} of {cluster.peak_tflops:g} TFLOP/s"
    )


_HEADERS = ("LAYOUT", "GB PER GPU", "STEP S", "TOKENS/S", "MFU")


def _row(plan: Plan) -> tuple[str, ...]:
    return (
        plan.layout.describe(),
        f"{plan.memory.total / 1e9:.1f}",
        f"{plan.time.total:.2f}",
        f"{plan.tokens_per_second:,.0f}",
        f"{plan.model_utilisation:.1%}",
    )


def _print_memory(plan: Plan) -> None:
    where = f", pipeline stage {plan.stage}" if plan.layout.pipeline > 1 else ""
    print_title(f"Memory of a GPU{where}: {plan.parameters.total:,} parameters")
    rows = [(PART_NAMES[name], f"{size / 1e9:.2f}") for name, size in plan.memory.parts().items()]
    print_table(("PART", "GB"), [*rows, ("total", f"{plan.memory.total / 1e9:.2f}")])


def _print_traffic(plan: Plan) -> None:
    print_title("Sent by a GPU in a step")
    cluster = plan.problem.cluster
    rows = [
        (t.group, str(t.ranks.size), t.kind, t.link(cluster), f"{t.sent / 1e9:.2f}", f"{t.seconds(cluster):.3f}")
        for t in combined(iter(plan.time.traffic))
    ]
    if rows:
        print_table(("GROUP", "RANKS", "COLLECTIVE", "SLOWEST LINK", "GB", "SECONDS"), rows)
    else:
        click.echo("nothing")


def _print_time(plan: Plan) -> None:
    print_title(f"Time of a step: {plan.cut.count} micro-batches of {plan.cut.tokens:,.0f} tokens per GPU")
    time = plan.time
    parts = {
        "compute": time.compute,
        "exposed collectives of layers": time.exchange,
        "gradients and weights": time.reduction,
        "pipeline bubble": time.bubble,
        "total": time.total,
    }
    print_table(("PART", "SECONDS"), [(name, f"{seconds:.3f}") for name, seconds in parts.items()])
    rate = plan.tokens_per_second
    click.echo(f"{rate:,.0f} tokens/s, {rate / plan.layout.world_size:,.0f} per GPU, MFU {plan.model_utilisation:.1%}")


def _print_sync(plan: Plan, engines: int) -> None:
    problem = plan.problem
    sync = weight_sync(problem.shape, plan.layout, problem.work.element, problem.cluster, engines)
    print_title(f"Weights to {engines} rollout engine(s)")
    click.echo(
        f"{sync.model / 1e9:.2f} GB to each, {sync.sent / 1e9:.2f} GB in all; a sending rank gathers "
        f"{sync.gathered / 1e9:.2f} GB; at least {sync.seconds:.2f} s between nodes"
    )


def print_scaling(problem: Problem, rows: Sequence[Scale]) -> None:
    """One line per number of GPUs."""
    print_problem(problem)
    click.echo()
    print_table(("GPUS", *_HEADERS, "EFFICIENCY"), [_scale_row(row) for row in rows])
    for row in rows:
        if row.plan is None:
            click.echo(f"{row.gpus:,}: {row.reason}")
    click.echo("\nEfficiency: tokens/s per GPU over those of the fewest GPUs that fit.")
    click.echo(NOTE)


def _scale_row(row: Scale) -> tuple[str, ...]:
    if row.plan is None:
        return (f"{row.gpus:,}", "none fits", *("-" for _ in _HEADERS[1:]), "-")
    return (f"{row.gpus:,}", *_row(row.plan), f"{row.efficiency:.0%}")


def plans_document(plans: Sequence[Plan], engines: int) -> dict[str, Any]:
    """The plans, the fastest first."""
    return {**_problem_document(plans[0].problem), "plans": [_plan_document(plan, engines) for plan in plans]}


def scaling_document(problem: Problem, rows: Sequence[Scale]) -> dict[str, Any]:
    """One entry per number of GPUs; `plan` is null where `reason` says why."""
    entries = [
        {
            "gpus": row.gpus,
            "reason": row.reason,
            "efficiency": row.efficiency,
            "plan": _plan_document(row.plan, 1) if row.plan else None,
        }
        for row in rows
    ]
    return {**_problem_document(problem), "scaling": entries}


def _problem_document(problem: Problem) -> dict[str, Any]:
    shape = problem.shape
    return {
        "measured": False,
        "model": {"name": shape.name, "parameters": total_parameters(shape), "active": active_parameters(shape)},
        "work": asdict(problem.work),
        "cluster": asdict(problem.cluster),
    }


def _plan_document(plan: Plan, engines: int) -> dict[str, Any]:
    problem, time = plan.problem, plan.time
    traffic = [
        {**asdict(t), "link": t.link(problem.cluster), "seconds": t.seconds(problem.cluster)}
        for t in combined(iter(time.traffic))
    ]
    seconds = {name: getattr(time, name) for name in ("compute", "exchange", "reduction", "bubble", "total")}
    return {
        "layout": {"gpus": plan.layout.world_size, **asdict(plan.layout)},
        "stage": plan.stage,
        "parameters": plan.parameters.total,
        "memory": {**plan.memory.parts(), "total": plan.memory.total},
        "micro_batches": asdict(plan.cut),
        "traffic": traffic,
        "seconds": seconds,
        "tokens_per_second": plan.tokens_per_second,
        "model_utilisation": plan.model_utilisation,
        "weight_sync": asdict(weight_sync(problem.shape, plan.layout, problem.work.element, problem.cluster, engines)),
        "warnings": list(plan.warnings),
    }
