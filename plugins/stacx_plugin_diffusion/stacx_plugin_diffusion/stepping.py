"""How noisy steps are made and scored, the same when they are sampled and when they are trained."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stacx_core import Args
from stacx_plugin_diffusion.objectives import Transition, cps_log_prob, log_prob, transition

SHARED = ("dynamics", "eta", "log_prob_reduction", "cps_log_prob", "guidance_scale", "sampling_steps", "sigma_shift")
"""Knobs whose values a replay has to share with the rollout."""


def sampling_settings(args: Args) -> dict[str, object]:
    """What every sample of a trajectory is marked with."""
    return {name: args.get(name) for name in SHARED}


@dataclass(frozen=True)
class Stepping:
    """How the noisy steps of a run are made.

    Args:
        dynamics, eta: See :func:`stacx_plugin_diffusion.objectives.transition`.
        reduction: Of log-probs over dimensions.
        published: Whether the log-prob of cps is the published distance.
        guidance: Scale of the policy's classifier-free guidance.
    """

    dynamics: str
    eta: float
    reduction: str = "mean"
    published: bool = False
    guidance: float = 1.0

    @classmethod
    def of(cls, args: Args) -> Stepping:
        """That of a run."""
        return cls(
            args.dynamics,
            args.eta,
            args.get("log_prob_reduction", "mean"),
            args.get("cps_log_prob") == "unnormalised",
            args.guidance_scale,
        )

    def transition(self, x: Tensor, velocity: Tensor, sigma: Tensor, following: Tensor, second: Tensor) -> Transition:
        """The Gaussian of the step from ``x [N, *D]``; the levels are ``[N]``, of which `second` is one number."""
        largest = float(second[0]) if len(second) else 0.0
        return transition(x, velocity, sigma, following, dynamics=self.dynamics, eta=self.eta, sigma_max=largest)

    def log_prob(self, following: Tensor, made: Transition) -> Tensor:
        """``[N]``: of the states ``[N, *D]`` that the steps came to."""
        if self.published:
            return cps_log_prob(following, made)
        return log_prob(following, made, self.reduction)
