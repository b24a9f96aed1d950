"""Samples that the policy draws and a reward scores: `flow_grpo`, `mix_grpo`, `diffusion_nft`, online `flow_dpo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stacx_core import Args, ConfigError, Rollout, Sample, pick_device, sub_seed
from stacx_plugin_diffusion.conditions import Condition
from stacx_plugin_diffusion.data import Example
from stacx_plugin_diffusion.engine import FlowEngine, Request, Trajectory
from stacx_plugin_diffusion.grids import mean_diversity
from stacx_plugin_diffusion.models import SETTINGS_FILE, FlowSettings
from stacx_plugin_diffusion.objectives import WindowSchedule, best_and_worst, choose_steps
from stacx_plugin_diffusion.rewards import load_reward
from stacx_plugin_diffusion.roll_ins.base import FlowRollIn, conditions_of, noised, sample_of
from stacx_plugin_diffusion.roll_ins.data import PairMaker, PairRollIn
from stacx_plugin_diffusion.stepping import Stepping, sampling_settings


@dataclass(frozen=True)
class Drawn:
    """One scored sample.

    Args:
        group: Its prompt's place in the rollout.
        prompt, condition: What it is of.
        trajectory: How it came about.
        reward: NaN where there is none.
    """

    group: int
    prompt: str
    condition: Condition
    trajectory: Trajectory
    reward: float

    @property
    def scored(self) -> bool:
        """Whether it has a reward."""
        return self.reward == self.reward


class RewardedRollIn(FlowRollIn):
    """Draws ``--n-samples-per-prompt`` samples of each prompt and scores them.

    Every sample has its own seed, from the run's seed, the rollout and its place in it. A sample without a finite
    reward stays in the batch and is trained nowhere.
    """

    def __init__(self, args: Args) -> None:
        if args.rm_type is None:
            raise ConfigError("samples are learnt from by their rewards: name one with --rm-type")
        self.reward = load_reward(args.rm_type, pick_device(args.device))
        super().__init__(args)

    def noisy_steps(self, rollout: int) -> Sequence[int]:
        """Steps of the schedule with noise; none for samples that come about by the ODE."""
        return ()

    def draw(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> tuple[list[Drawn], dict[str, float]]:
        """The scored samples of some prompts, and metrics of them."""
        args, noisy, count = self.args, self.noisy_steps(rollout), self.args.n_samples_per_prompt
        owners = [place for place in range(len(rows)) for _ in range(count)]
        conditions = conditions_of(rows, engine)
        requests = [
            Request(
                conditions[place],
                sub_seed(args.seed, "sample", rollout, place, number % count),
                sub_seed(args.seed, "first", rollout, place) if args.get("same_noise") == "group" else None,
            )
            for number, place in enumerate(owners)
        ]
        stepping = Stepping.of(args) if noisy else None
        drawn = engine.draw(requests, stepping, noisy, noisy)
        media = engine.decode(torch.stack([trajectory.final for trajectory in drawn]))
        prompts = [rows[place].prompt for place in owners]
        rewards = self.reward(media, prompts)
        made = [
            Drawn(place, prompts[number], conditions[place], drawn[number], float(rewards[number]))
            for number, place in enumerate(owners)
        ]
        return made, _metrics(rewards, media, prompts)


def _metrics(rewards: Tensor, media: Tensor, prompts: Sequence[str]) -> dict[str, float]:
    scored = rewards[rewards.isfinite()]
    return {
        "reward_mean": float(scored.mean()) if len(scored) else 0.0,
        "reward_std": float(scored.std(correction=0)) if len(scored) else 0.0,
        "without_reward": float(len(rewards) - len(scored)),
        **mean_diversity(media, prompts),
    }


def rewarded(index: int, drawn: Drawn, inputs: dict[str, Any], rollout: int, **fields: Any) -> Sample:
    """The sample of a drawn one; without a reward it is removed from the loss and from its group."""
    return sample_of(
        index,
        drawn.group,
        drawn.prompt,
        {**inputs, "conditions": drawn.condition},
        version=rollout,
        reward=drawn.reward if drawn.scored else None,
        remove_sample=not drawn.scored,
        **fields,
    )


class TrajectoryRollIn(RewardedRollIn):
    """Keeps the noisy steps of each sample, or ``--step-fraction`` of them."""

    def noisy_steps(self, rollout: int) -> Sequence[int]:
        """All but the last, which has no noise."""
        return range(self.args.sampling_steps - 1)

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class."""
        drawn, metrics = self.draw(rollout, rows, engine)
        made = [self._sample(index, one, rollout, engine) for index, one in enumerate(drawn)]
        return Rollout(made, metrics)

    def _sample(self, index: int, drawn: Drawn, rollout: int, engine: FlowEngine) -> Sample:
        trajectory, sigmas = drawn.trajectory, engine.sigmas
        kept = torch.arange(len(trajectory.steps))
        if self.args.step_fraction < 1:
            kept = choose_steps(kept.tolist(), self.args.step_fraction, self.generator("steps", rollout, index))
        steps = torch.tensor(trajectory.steps)[kept]
        inputs = {
            "states": trajectory.states[kept],
            "sigmas": sigmas[steps],
            "steps": steps,
            "next_states": trajectory.next_states[kept],
            "next_sigmas": sigmas[steps + 1],
            "second_sigmas": sigmas[1].expand(len(steps)).clone(),
        }
        log_probs = trajectory.log_probs[kept].tolist()
        settings = {"sampling": sampling_settings(self.args)}
        return rewarded(index, drawn, inputs, rollout, rollout_log_probs=log_probs, metadata=settings)


class WindowRollIn(TrajectoryRollIn):
    """Noise, and training, in a window of the steps; the others are those of the ODE.

    The window follows from the number of the rollout alone, so that a resumed run goes on with it.
    """

    def __init__(self, args: Args) -> None:
        self.windows = WindowSchedule(
            args.sampling_steps,
            args.window_size,
            args.window_low,
            args.window_high,
            args.window_strategy,
            args.window_stride,
            args.window_rollouts,
            args.window_rollouts_least,
            args.window_rate,
            args.window_threshold,
            args.window_roll_back,
            args.seed,
        )
        super().__init__(args)

    def noisy_steps(self, rollout: int) -> Sequence[int]:
        """The window of the rollout."""
        return self.windows.window(rollout)

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class; reports where the window begins."""
        made = super().samples(rollout, rows, engine)
        return Rollout(made.samples, {**made.metrics, "window_start": float(self.noisy_steps(rollout)[0])})


class FinalRollIn(RewardedRollIn):
    """Keeps the clean latents alone, with fresh noise at ``--nft-draws`` levels.

    Raises:
        ConfigError: The model was made for a few large steps, which training on noised samples undoes.
    """

    def __init__(self, args: Args) -> None:
        if FlowSettings.read(Path(args.hf_checkpoint)).step_distilled:
            raise ConfigError(
                f"--hf-checkpoint {args.hf_checkpoint!r} is step-distilled ({SETTINGS_FILE}): it was made for a few "
                "large steps, and training it on noised samples makes what it draws in them blurry",
                "train the model that it was distilled from, or use flow_grpo or mix_grpo",
            )
        super().__init__(args)

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class."""
        drawn, metrics = self.draw(rollout, rows, engine)
        made = []
        for index, one in enumerate(drawn):
            generator = self.generator("levels", rollout, index)
            sigmas = self._levels(engine.sigmas, generator)
            noise = torch.randn(len(sigmas), *one.trajectory.final.shape, generator=generator)
            made.append(rewarded(index, one, noised(one.trajectory.final, sigmas, noise), rollout))
        return Rollout(made, metrics)

    def _levels(self, schedule: Tensor, generator: torch.Generator) -> Tensor:
        count = self.args.nft_draws
        if self.args.nft_levels == "uniform":
            return 0.01 + 0.98 * torch.rand(count, generator=generator)
        rounds = -(-count // (len(schedule) - 1))
        order = torch.cat([torch.randperm(len(schedule) - 1, generator=generator) for _ in range(rounds)])
        return schedule[order[:count]]


class OnlinePairRollIn(RewardedRollIn):
    """Draws samples and pairs the best with the worst of each prompt; a prompt whose rewards are equal has no pair."""

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class."""
        drawn, metrics = self.draw(rollout, rows, engine)
        scored = torch.tensor([one.scored for one in drawn])
        rewards = torch.tensor([one.reward if one.scored else 0.0 for one in drawn])
        best, worst = best_and_worst(rewards, torch.tensor([one.group for one in drawn]), scored)
        made = PairMaker(self, rollout)
        for chosen, rejected in zip(best.tolist(), worst.tolist(), strict=True):
            winner, loser = drawn[chosen], drawn[rejected]
            made.add(winner.prompt, winner.trajectory.final, loser.trajectory.final, winner.condition)
        return Rollout(made.samples, {**metrics, "pairs": len(best) / max(len(rows), 1)})


def pairs(args: Args) -> FlowRollIn:
    """The roll-in of `flow_dpo`: pairs of the policy's own samples, or of the data."""
    return OnlinePairRollIn(args) if args.online_pairs else PairRollIn(args)
