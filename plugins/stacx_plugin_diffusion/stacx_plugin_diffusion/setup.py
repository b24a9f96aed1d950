"""Data, rewards, evaluation and engine of a run of flow models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from stacx_core import (
    Args,
    ConfigError,
    Learner,
    RollIn,
    RolloutEngine,
    RunSetup,
    TrainingConfig,
    pick_device,
    resolve_object,
    sub_seed,
)
from stacx_plugin_diffusion.data import Example, read_examples
from stacx_plugin_diffusion.engine import FlowEngine, Request
from stacx_plugin_diffusion.grids import mean_diversity, write_grid
from stacx_plugin_diffusion.knobs import check_lora
from stacx_plugin_diffusion.models import FlowModel, inputs_of, load_flow_model
from stacx_plugin_diffusion.rewards import MediaReward, load_reward
from stacx_plugin_diffusion.roll_ins.base import FlowRollIn, check_conditions, conditions_of
from stacx_plugin_diffusion.roll_ins.sampled import RewardedRollIn

GRID_COLUMNS = 8


class FlowSetup(RunSetup):
    """See :class:`stacx_core.RunSetup`."""

    def __init__(self, config: TrainingConfig, args: Args) -> None:
        check_lora(args)
        _check_other_models(config, args)
        self.args = args
        self.roll_in: RollIn = resolve_object(config.rollout)(args)
        self.evaluation = DrawnEvaluation(args) if args.eval_prompt_data is not None else None
        if args.rm_type is not None and self.evaluation is None and not isinstance(self.roll_in, RewardedRollIn):
            raise ConfigError("--rm-type has no effect: nothing is learnt from rewards here; add --eval-prompt-data")

    def engine(self, model: nn.Module) -> RolloutEngine:
        """See the base class; what is read of the data by a model is read now.

        Raises:
            ConfigError, DataError, ModelError: Size or data do not fit the model.
        """
        engine = FlowEngine(cast(FlowModel, model), self.args, next(model.parameters()).device)
        cast(FlowRollIn, self.roll_in).attach(engine)
        if self.evaluation is not None:
            _ = engine.latent_shape
            check_conditions(self.evaluation.rows, engine)
        return cast(RolloutEngine, engine)

    def before_training(self, learner: Learner, engine: RolloutEngine, completed: int) -> None:
        """Nothing to do: every rollout is compared by `check_ratios`."""

    def save(self, folder: Path) -> None:
        """Nothing to write: a saved model has its prompt encoder beside it."""


def _check_other_models(config: TrainingConfig, args: Args) -> None:
    """Refuse models that nothing reads, or that read other latents or prompts than the policy.

    Raises:
        ConfigError: Naming the flag.
        ModelError: A folder is no checkpoint.
    """
    used = {sync.src for sync in config.syncs if sync.when is None or sync.when(args)}
    readers = dict.fromkeys(knob for role in config.roles for knob in role.reads.get("ref_velocities", ()))
    if args.ref_load is not None and not any(r.name in used for r in config.roles if r.load_arg == "ref_load"):
        without = " without " + " or ".join("--" + name.replace("_", "-") for name in readers) if readers else ""
        raise ConfigError(f"--ref-load has no effect{without}; leave it out")
    for name in dict.fromkeys(role.load_arg for role in config.roles if role.load_arg is not None):
        if args.get(name) is None:
            continue
        own, policys = inputs_of(args.get(name)), inputs_of(args.hf_checkpoint)
        if own != policys:
            raise ConfigError(
                f"--{name.replace('_', '-')} {args.get(name)!r} reads {own}, and the policy {policys}: they must be "
                "alike, since both are asked about the same states and prompts"
            )


class DrawnEvaluation:
    """Draws one sample of each prompt by the ODE, always with the same noise; scores them and draws some on a sheet.

    Raises:
        ConfigError, DataError: The prompts or the reward cannot be used.
    """

    def __init__(self, args: Args) -> None:
        self.args = args
        name = args.eval_rm_type or args.rm_type
        self.reward: MediaReward | None = load_reward(name, pick_device(args.device)) if name is not None else None
        self.rows = read_examples(args.eval_prompt_data)[: args.eval_limit]
        self.size = len(self.rows)
        self.pictures: Sequence[Path] = ()

    def run(self, engine: RolloutEngine) -> dict[str, float]:
        """Mean reward, share without one, mean diversity of the samples of one prompt, and how many there are."""
        drawer = cast(FlowEngine, engine)
        media = drawn_media(drawer, self.rows, self.args.seed)
        prompts = [row.prompt for row in self.rows]
        if self.args.sample_grid:
            path = Path(self.args.output_dir) / "samples" / f"{drawer.version:06d}.png"
            count = self.args.sample_grid
            write_grid(path, media[:count], GRID_COLUMNS, prompts[:count])
            self.pictures = (path,)
        metrics = {"samples": float(len(media)), **mean_diversity(media, prompts)}
        if self.reward is None:
            return metrics
        rewards = self.reward(media, prompts)
        scored = rewards[rewards.isfinite()]
        without = float(len(rewards) - len(scored))
        return {**metrics, "reward_mean": float(scored.mean()) if len(scored) else 0.0, "without_reward": without}


def drawn_media(engine: FlowEngine, rows: Sequence[Example], seed: int) -> Tensor:
    """``[N, C, H, W]`` fp32 in [0, 1]: one sample for each row, by the ODE."""
    conditions = conditions_of(rows, engine)
    requests = [Request(condition, sub_seed(seed, "eval", number)) for number, condition in enumerate(conditions)]
    return engine.decode(torch.stack([drawn.final for drawn in engine.draw(requests)]))


def draw_samples(config: TrainingConfig, args: Args, output: Path, count: int) -> None:
    """Draw so many samples of the prompts, the first ones again where there are fewer, on one sheet.

    Raises:
        ConfigError, DataError, ModelError: Prompts or model cannot be used.
    """
    source = args.eval_prompt_data or args.prompt_data
    if source is None:
        raise ConfigError("name the prompts with --prompt-data")
    if output.suffix.lower() != ".png":
        raise ConfigError(f"--output {output}: samples are drawn on a PNG; end its name in .png")
    rows = read_examples(source)
    chosen = [rows[number % len(rows)] for number in range(count)]
    device = pick_device(args.device)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    engine = FlowEngine(load_flow_model(args.hf_checkpoint, dtype, device), args, device)
    write_grid(output, drawn_media(engine, chosen, args.seed), GRID_COLUMNS, [row.prompt for row in chosen])
