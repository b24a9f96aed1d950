"""Flow matching, as it is; the loss of `flow_sft`, and of roles that are never trained."""

from __future__ import annotations

from torch import Tensor

from stacx_core import Batch
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.objectives import Terms, loss_weight, velocity_error


class FlowMatching(FlowSpecialization):
    """``w(sigma) a mean_dims (v - (eps - x0))^2``; a is the sample's own weight."""

    guided = False

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """See the base class; reports ``error``, without either weight."""
        error = velocity_error(velocity, self.stack(batch, "targets"))
        weight = loss_weight(self.stack(batch, "sigmas", 1.0), self.args.loss_weight, self.args.loss_weight_slope)
        return error * weight * self.stack(batch, "example_weights"), {"error": error.detach()}


class Frozen(FlowSpecialization):
    """Of a role that is asked for velocities alone."""

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """Nothing is trained."""
        return velocity.flatten(1).sum(1) * 0, {}


class Critic(FlowSpecialization):
    """``mean_dims (v - (eps - x_g))^2``: the critic of distribution matching learns what the generator makes."""

    guided = False

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """See the base class."""
        error = velocity_error(velocity, self.stack(batch, "compared_targets"))
        return error, {"error": error.detach()}
