"""The samples that `stacx check` uses for flow models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stacx_core import Sample
from stacx_core.testing import Row, Subject
from stacx_plugin_diffusion.objectives import interpolate, make_schedule
from stacx_plugin_diffusion.stepping import Stepping

SHAPE = (1, 2, 2)
LEVELS = make_schedule(8)


@dataclass(frozen=True)
class _Plan:
    """What is fixed about a sample; the rest is drawn."""

    mask: str
    group: int
    reward: float | None = 0.0
    chosen: bool | None = None


_GROUPS = (
    *(_Plan("1101", 0, 1.0), _Plan("011", 0, 0.25), _Plan("11111", 0, -0.45)),
    *(_Plan("1", 1, 0.5), _Plan("110110", 1, 2.0), _Plan("011", 1, 0.0)),
    *(_Plan("10", 2, 1.0), _Plan("111", 2, None), _Plan("1011", 2, 0.0)),
    *(_Plan("000", 3, 1.0), _Plan("1110", 3, 0.75), _Plan("11", 3, -1.0)),
)
"""Groups of uneven numbers of states, masks with holes, a sample without a reward and one that is trained nowhere."""

_PAIRS = tuple(
    _Plan(mask, pair, chosen=chosen)
    for pair, mask in enumerate(("111", "1", "1111", "11"))
    for chosen in ((True, False) if pair % 2 else (False, True))
)


def flow_rows(subject: Subject) -> tuple[Row, ...]:
    """Samples with states for a role: pairs where it reads them, else groups."""
    generator = torch.Generator().manual_seed(20)
    paired = "is_chosen" in subject.given_keys()
    shared: dict[int, dict[str, Tensor]] = {}
    rows = []
    for index, plan in enumerate(_PAIRS if paired else _GROUPS):
        inputs = _inputs(subject, len(plan.mask), generator, shared.get(plan.group) if paired else None)
        shared.setdefault(plan.group, inputs)
        rows.append(_row(index, plan, inputs, generator, paired))
    return tuple(rows)


def _row(index: int, plan: _Plan, inputs: dict[str, Any], generator: torch.Generator, paired: bool) -> Row:
    count = len(plan.mask)
    output = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)
    near = {
        f"{role}_velocities": (output + spread * torch.randn(output.shape, generator=generator)).float()
        for role, spread in (("old", 0.02), ("ref", 0.3), ("teacher", 0.5), ("critic", 0.4))
    }
    before = -1.0 + 0.1 * torch.randn(count, generator=generator)
    keys = {**near, "log_probs": before, "rollout_log_probs": before + 1e-6}
    sample = Sample(
        index=index,
        group_index=plan.group,
        rollout_id=plan.group if paired else index,
        inputs=inputs,
        response_length=count,
        loss_mask=[int(m) for m in plan.mask],
        reward=plan.reward,
        remove_sample=plan.reward is None,
        pair_id=plan.group if paired else None,
        is_chosen=plan.chosen,
    )
    return Row(sample, output, keys)


def _inputs(
    subject: Subject, count: int, generator: torch.Generator, other: dict[str, Tensor] | None
) -> dict[str, Any]:
    """What a roll-in brings; the sides of a pair have one noise, at one set of levels."""
    steps = torch.randperm(len(LEVELS) - 2, generator=generator)[:count]
    x0 = torch.randn(count, *SHAPE, generator=generator)
    noise = torch.randn(count, *SHAPE, generator=generator) if other is None else other["noises"]
    sigmas = LEVELS[steps] if other is None else other["sigmas"]
    states = interpolate(x0, noise, sigmas)
    following = LEVELS[steps + 1] if other is None else other["next_sigmas"]
    args = subject.args
    stepping = Stepping.of(args) if "dynamics" in args else Stepping("dance_sde", 0.3)
    made = stepping.transition(states, noise - x0, sigmas, following, LEVELS[1].expand(count))
    return {
        "states": states,
        "sigmas": sigmas,
        "steps": steps,
        "noises": noise,
        "targets": noise - x0,
        "next_states": made.sample(torch.randn(count, *SHAPE, generator=generator)),
        "next_sigmas": following,
        "second_sigmas": LEVELS[1].expand(count).clone(),
        "compared_states": states,
        "compared_sigmas": sigmas,
        "compared_noises": noise,
        "compared_targets": noise - x0,
        "example_weights": 0.5 + torch.rand(count, generator=generator),
        "conditions": {},
    }
