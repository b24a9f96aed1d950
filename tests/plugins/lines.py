"""Further recipes of the example: two lines, one of them now and then; a line whose average is what predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from stacx_plugin_regression.recipe import POINTS

from stacx_core import Args, Knob, ModelRole, RoleHandle, SyncChannel, TrainingConfig, hookimpl, recipe

LOSS = "stacx_plugin_regression.line:SquaredError"


def line(name: str, **fields: Any) -> ModelRole:
    return ModelRole(name, LOSS, inputs_key="inputs", **fields)


def of_points(name: str, *roles: ModelRole, **fields: Any) -> TrainingConfig:
    return TrainingConfig(
        name,
        roles,
        requires=("hf_checkpoint", "prompt_data"),
        rollout="stacx_plugin_regression.run:PointRollIn",
        modality=POINTS,
        **fields,
    )


def with_second(args: Args) -> bool:
    return bool(args.second)


@recipe("two_lines")
def two_lines() -> TrainingConfig:
    reads: dict[str, tuple[str, ...]] = {"targets": ()}
    return of_points(
        "two_lines",
        line("first", sync_to_rollout=True, reads=reads),
        line("second", reads=reads, trained_every="second_every", when=with_second),
        knobs=(
            Knob("second", bool, True, "Train a second line.", "lines"),
            Knob("second_every", int, None, "Train it in every so many-th rollout alone.", "lines", minimum=1),
        ),
    )


@recipe("averaged_line")
def averaged_line() -> TrainingConfig:
    return of_points(
        "averaged_line",
        line("line", reads={"targets": ()}),
        line("average", trainable=False, stateful=True, sync_to_rollout=True),
    )


class HalfWay(SyncChannel):
    """After each rollout the average is half-way between itself and the line."""

    def __init__(self, line: torch.nn.Module, average: torch.nn.Module) -> None:
        self.pairs = list(zip(average.parameters(), line.parameters(), strict=True))

    @torch.no_grad()
    def after_update(self, completed: int) -> None:
        for mine, theirs in self.pairs:
            mine.lerp_(theirs, 0.5)


@hookimpl
def build_syncs(config: TrainingConfig, roles: Mapping[str, RoleHandle]) -> list[SyncChannel]:
    return [HalfWay(roles["line"].model, roles["average"].model)] if config.name == "averaged_line" else []
