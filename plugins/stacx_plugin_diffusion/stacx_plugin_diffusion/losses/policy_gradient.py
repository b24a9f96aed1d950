"""The clipped policy gradient on denoising steps: `flow_grpo` and `mix_grpo`."""

from __future__ import annotations

from torch import Tensor

from stacx_core import Batch
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.objectives import (
    Terms,
    Transition,
    clipped_terms,
    guard_terms,
    transition_kl,
    velocity_error,
)
from stacx_plugin_diffusion.stepping import Stepping


class PolicyGradient(FlowSpecialization):
    """PPO's clipped term for each noisy step, plus ``--flow-kl-coef`` times the divergence from the reference."""

    by_step = ("ratio", "below", "above", "kl")

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """See the base class; reports ratios, their clipping and the divergence."""
        args, made = self.args, self._step(velocity, batch)
        log_probs = self._log_probs(made, batch)
        old, advantages = self.stack(batch, "rollout_log_probs"), self.stack(batch, "advantages")
        if args.grpo_guard:
            before = self._step(self.stack(batch, "old_velocities"), batch)
            terms, seen = guard_terms(log_probs, old, made, before, advantages, args.clip_range, args.clip_range_high)
        else:
            terms, seen = clipped_terms(log_probs, old, advantages, args.clip_range, args.clip_range_high)
        if not args.flow_kl_coef:
            return terms, seen
        kl = self._divergence(velocity, made, batch)
        return terms + args.flow_kl_coef * kl, {**seen, "kl": kl.detach()}

    def waives(self) -> dict[str, str]:
        """What sampling and training disagree on is refused, unless ``--ratio-tolerance`` is 0."""
        refused = "a rollout whose log-probs are not the trainer's own is refused"
        return {"extreme_log_ratios": refused} if self.args.ratio_tolerance else {}

    def log_probs(self, velocity: Tensor, batch: Batch) -> Tensor:
        """See the base class."""
        return self._log_probs(self._step(velocity, batch), batch)

    def _log_probs(self, made: Transition, batch: Batch) -> Tensor:
        return Stepping.of(self.args).log_prob(self.stack(batch, "next_states"), made)

    def _step(self, velocity: Tensor, batch: Batch) -> Transition:
        """The steps that these velocities make; a step that is not trained goes from noise half-way."""
        sigma, following = self.stack(batch, "sigmas", 1.0), self.stack(batch, "next_sigmas", 0.5)
        second = self.stack(batch, "second_sigmas", 0.5)[self.mask(batch)]
        return Stepping.of(self.args).transition(self.stack(batch, "states"), velocity, sigma, following, second)

    def _divergence(self, velocity: Tensor, made: Transition, batch: Batch) -> Tensor:
        reference = self.stack(batch, "ref_velocities")
        if self.args.flow_kl == "velocity":
            return velocity_error(velocity, reference)
        return transition_kl(made, self._step(reference, batch))
