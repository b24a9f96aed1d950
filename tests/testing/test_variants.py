"""Which arguments a recipe is checked under."""

from __future__ import annotations

from typing import Any

from stacx_core import Args, ConfigError, Knob, ModelRole, TrainingConfig
from stacx_core.testing.variants import variants


def check_args(args: Args) -> None:
    """The coefficient belongs to the switch, and both modes beside it do not."""
    if args.weight and not args.use_extra:
        raise ConfigError("--weight needs --use-extra")
    if args.kind == "late" and not args.use_extra:
        raise ConfigError("--kind late needs --use-extra")
    if args.loss_aggregation == "constant":
        raise ConfigError("no constant")


KNOBS = (
    Knob("weight", float, 0.0, "A weight.", "made", minimum=0, maximum=0.3),
    Knob("use_extra", bool, False, "A switch.", "made"),
    Knob("kind", str, "early", "A choice.", "made", choices=("early", "late")),
    Knob("limit", int, None, "A bound.", "made", exclusive_minimum=1),
    Knob("path", str, None, "A file.", "made"),
)


def config(**fields: Any) -> TrainingConfig:
    role = ModelRole(
        "policy",
        "stacx_core.specialization:CausalDecoderSpecialization",
        reads={"log_probs": ("recompute_log_probs",), "ref_log_probs": ("weight",)},
    )
    return TrainingConfig("made", (role,), knobs=KNOBS, check_args=check_args, **fields)


def test_each_switch_and_choice_that_is_taken() -> None:
    found = {variant.name: variant.args for variant in variants(config())}
    assert list(found) == [
        "the defaults",
        "everything switched on",
        "--recompute-log-probs on",
        "--weight 0.25 with everything switched on",
        "--use-extra on",
        "--kind late with everything switched on",
        "--loss-aggregation token_mean",
        "--loss-aggregation seq_mean_token_sum",
        "--rollout-temperature 0.5",
    ]
    together = found["everything switched on"]
    assert (together.weight, together.use_extra, together.limit, together.path) == (0.25, True, 2, None)
    assert found["--kind late with everything switched on"].kind == "late"
    assert found["the defaults"].weight == 0.0


def test_what_a_recipe_requires_is_filled_in() -> None:
    required = config(requires=("path", "limit", "hf_checkpoint"))
    args = variants(required)[0].args
    assert (args.path, args.limit) == ("exact", 2)
    assert args.hf_checkpoint is not None
