"""States that a student comes through itself: `flow_distill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stacx_core import Rollout, sub_seed
from stacx_plugin_diffusion.data import Example
from stacx_plugin_diffusion.engine import FlowEngine, Request
from stacx_plugin_diffusion.objectives import interpolate, shift_sigma, velocity_target
from stacx_plugin_diffusion.roll_ins.base import FlowRollIn, conditions_of, sample_of
from stacx_plugin_diffusion.stepping import Stepping


class StudentRollIn(FlowRollIn):
    """Draws ``--n-samples-per-prompt`` samples of each prompt and keeps what the loss compares at."""

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class."""
        args, count = self.args, self.args.n_samples_per_prompt
        owners = [place for place in range(len(rows)) for _ in range(count)]
        conditions = conditions_of(rows, engine)
        requests = [
            Request(conditions[place], sub_seed(args.seed, "sample", rollout, place, number % count))
            for number, place in enumerate(owners)
        ]
        make = self._generated if args.distill_loss == "dmd" else self._trajectories
        made = [
            sample_of(number, place, rows[place].prompt, {**inputs, "conditions": conditions[place]}, version=rollout)
            for number, (place, inputs) in enumerate(zip(owners, make(rollout, requests, engine), strict=True))
        ]
        return Rollout(made, {})

    def _trajectories(self, rollout: int, requests: Sequence[Request], engine: FlowEngine) -> list[dict[str, Any]]:
        """The states of all steps, with noise where the loss compares steps with noise."""
        sigmas, args = engine.sigmas, self.args
        noisy = range(args.sampling_steps - 1) if args.distill_loss == "transition_kl" else ()
        keep = noisy or range(args.sampling_steps)
        stepping = Stepping.of(args) if noisy else None
        steps = torch.tensor(keep)
        shared = {
            "sigmas": sigmas[steps],
            "compared_sigmas": sigmas[steps],
            "next_sigmas": sigmas[steps + 1],
            "second_sigmas": sigmas[1].expand(len(steps)).clone(),
        }
        drawn = engine.draw(requests, stepping, noisy, keep)
        return [{"states": one.states, "compared_states": one.states, **shared} for one in drawn]

    def _generated(self, rollout: int, requests: Sequence[Request], engine: FlowEngine) -> list[dict[str, Any]]:
        """The state at which the generator's last step is taken, and its result with noise again.

        The generator makes a clean latent at each step and adds fresh noise for the next one. The step at which it
        ends is drawn for the whole rollout.
        """
        levels, args = engine.sigmas[:-1], self.args
        generator = self.generator("exit", rollout)
        last = int(torch.randint(len(levels), (), generator=generator))
        noises = [torch.Generator().manual_seed(sub_seed(request.seed, "generator")) for request in requests]

        def fresh() -> torch.Tensor:
            return torch.stack([torch.randn(engine.latent_shape, generator=noise) for noise in noises])

        x = fresh()
        for step in range(last + 1):
            clean = engine.clean(x, levels[step], requests)
            if step < last:
                x = interpolate(clean, fresh(), levels[step + 1].expand(len(x)))
        span = args.dmd_noise_max - args.dmd_noise_min
        drawn = torch.stack([torch.rand((), generator=noise) for noise in noises])
        sigmas, noise = shift_sigma(args.dmd_noise_min + span * drawn, args.sigma_shift), fresh()
        compared, targets = interpolate(clean, noise, sigmas), velocity_target(clean, noise)
        return [
            {
                "states": x[i : i + 1],
                "sigmas": levels[last : last + 1].clone(),
                "compared_states": compared[i : i + 1],
                "compared_sigmas": sigmas[i : i + 1],
                "compared_noises": noise[i : i + 1],
                "compared_targets": targets[i : i + 1],
            }
            for i in range(len(requests))
        ]
