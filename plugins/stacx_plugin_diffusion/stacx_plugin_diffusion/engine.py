"""The engine of flow models: denoises in process, with the very weights that are being trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from stacx_core import Args, sub_seed
from stacx_plugin_diffusion.conditions import Condition, GuidedModel, stacked
from stacx_plugin_diffusion.models import FlowModel
from stacx_plugin_diffusion.objectives import make_schedule, transition, x0_from_velocity
from stacx_plugin_diffusion.stepping import Stepping

KEPT_CONDITIONS = 1024
"""Of a large text encoder one takes megabytes."""


@dataclass(frozen=True)
class Request:
    """One sample to draw.

    Args:
        condition: What the network is told.
        seed: Of all noise of the sample, which so does not depend on what is drawn beside it.
        first_seed: Of the noise that it begins at; ``seed`` unless given.
    """

    condition: Condition
    seed: int
    first_seed: int | None = None


@dataclass(frozen=True)
class Trajectory:
    """What was drawn, on the CPU.

    Args:
        final: ``[*D]`` fp32, the clean latent.
        steps: The K steps that were kept, rising.
        states: ``[K, *D]`` fp32, before each.
        next_states: ``[K, *D]`` fp32, behind each.
        log_probs: ``[K]`` fp32; 0 for a step without noise.
    """

    final: Tensor
    steps: tuple[int, ...]
    states: Tensor
    next_states: Tensor
    log_probs: Tensor


class FlowEngine:
    """Draws samples; as a rollout engine it has no generation of tokens.

    Args:
        model: The policy, whose weights are read in place.
        args: The completed arguments.
        device: Where the model is.
    """

    def __init__(self, model: FlowModel, args: Args, device: torch.device) -> None:
        self.model, self.args, self.device = model, args, device
        self.version = 0
        self.sigmas = make_schedule(args.sampling_steps, args.sigma_shift)
        self._conditions: dict[str, Condition] = {}
        self._guided = GuidedModel(model, args.guidance_scale)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Of the samples."""
        return self.model.latent_shape(self.args.height, self.args.width)

    @torch.no_grad()
    def misfit(self, condition: Condition) -> str:
        """Why the network cannot read a condition, by trying it on its smallest latent; empty where it can."""
        side = self.model.codec.downscale * self.model.patch_size
        x = torch.zeros(1, *self.model.latent_shape(side, side), device=self.device)
        try:
            self.model.predict_velocity(x, x.new_ones(1), stacked([condition], self.device))
        except RuntimeError as error:
            return str(error)
        return ""

    def encode(self, prompts: Sequence[str]) -> list[Condition]:
        """The condition of each prompt; those encoded last are kept."""
        fresh = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._conditions]
        if fresh:
            self._conditions |= dict(zip(fresh, self.model.encode(fresh), strict=True))
        found = [self._conditions[prompt] for prompt in prompts]
        for prompt in list(self._conditions)[:-KEPT_CONDITIONS]:
            del self._conditions[prompt]
        return found

    @torch.no_grad()
    def draw(
        self,
        requests: Sequence[Request],
        stepping: Stepping | None = None,
        noisy: Collection[int] = (),
        keep: Collection[int] = (),
    ) -> list[Trajectory]:
        """One sample for each request, some at a time.

        Args:
            requests: What to draw.
            stepping: How the noisy steps are made; None where there are none.
            noisy: Steps with noise; the others are those of the ODE.
            keep: Steps whose states are kept.
        """
        training = self.model.training
        self.model.eval()
        size, drawn = self.args.max_states_per_gpu, list[Trajectory]()
        for start in range(0, len(requests), size):
            drawn += self._together(requests[start : start + size], stepping, frozenset(noisy), sorted(keep))
        self.model.train(training)
        return drawn

    def _together(
        self, requests: Sequence[Request], stepping: Stepping | None, noisy: frozenset[int], keep: Sequence[int]
    ) -> list[Trajectory]:
        shape = self.latent_shape
        x = torch.stack([_noise(shape, _generator(r.seed if r.first_seed is None else r.first_seed)) for r in requests])
        generators = [_generator(request.seed, "steps") for request in requests]
        conditions = [request.condition for request in requests]
        x, kept = x.to(self.device), list[tuple[Tensor, Tensor, Tensor]]()
        for step, (sigma, following) in enumerate(zip(self.sigmas[:-1], self.sigmas[1:], strict=True)):
            levels = sigma.expand(len(x)).to(self.device), following.expand(len(x)).to(self.device)
            velocity = self._guided.velocity(x, levels[0], conditions)
            if step in noisy and stepping is not None:
                made = stepping.transition(x, velocity, *levels, self.sigmas[1].expand(len(x)))
                after = made.sample(torch.stack([_noise(shape, g) for g in generators]).to(self.device))
                log_probs = stepping.log_prob(after, made)
            else:
                after, log_probs = transition(x, velocity, *levels).mean, torch.zeros(len(x))
            if step in keep:
                kept.append((x.cpu(), after.cpu(), log_probs.cpu()))
            x = after
        final, empty = x.cpu(), torch.empty(len(x), 0, *shape)
        states, next_states, log_probs = (
            (torch.stack(list(part), 1) for part in zip(*kept, strict=True))
            if kept
            else (empty, empty, torch.empty(len(x), 0))
        )
        parts = zip(final, states, next_states, log_probs, strict=True)
        return [Trajectory(f, tuple(keep), s, n, p) for f, s, n, p in parts]

    @torch.no_grad()
    def clean(self, x: Tensor, sigma: Tensor, requests: Sequence[Request]) -> Tensor:
        """``[N, *D]`` on the CPU: the clean latents that the model sees in states ``x`` at one noise level."""
        size, made = self.args.max_states_per_gpu, list[Tensor]()
        for start in range(0, len(x), size):
            part = x[start : start + size].to(self.device)
            levels = sigma.expand(len(part)).to(self.device)
            conditions = [request.condition for request in requests[start : start + size]]
            made.append(x0_from_velocity(part, self._guided.velocity(part, levels, conditions), levels).cpu())
        return torch.cat(made)

    def decode(self, latents: Tensor) -> Tensor:
        """Media ``[N, C, H, W]`` fp32 in [0, 1] on the CPU of ``[N, *D]`` latents, some at a time."""
        parts = latents.split(self.args.max_states_per_gpu)
        return torch.cat([self.model.decode(part.to(self.device)).cpu() for part in parts])

    def weights_at_rest(self) -> AbstractContextManager[None]:
        """Nothing to do: whoever generates does not train meanwhile."""
        return nullcontext()

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Take the model, whose weights are read in place."""
        self.version = version
        if model is not self.model:
            self.model = cast(FlowModel, model)
            self._guided = GuidedModel(self.model, self.args.guidance_scale)

    def close(self) -> None:
        """Nothing to let go of."""


def _generator(seed: int, stream: str = "") -> torch.Generator:
    return torch.Generator().manual_seed(sub_seed(seed, "noise" + stream))


def _noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(tuple(shape), generator=generator)
