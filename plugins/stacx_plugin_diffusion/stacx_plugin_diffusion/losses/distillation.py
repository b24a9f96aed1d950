"""Learning from a teacher: `flow_distill`."""

from __future__ import annotations

from torch import Tensor

from stacx_core import Batch
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.objectives import (
    Terms,
    dmd_generator_terms,
    transition_kl,
    velocity_distillation_terms,
    x0_from_velocity,
)
from stacx_plugin_diffusion.stepping import Stepping


class Distillation(FlowSpecialization):
    """``--distill-loss`` of the student's velocities and those of the teacher at the student's own states."""

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """See the base class."""
        return {"velocity": self._velocity, "transition_kl": self._transition, "dmd": self._dmd}[
            self.args.distill_loss
        ](velocity, batch)

    def _velocity(self, velocity: Tensor, batch: Batch) -> Terms:
        sigmas, args = self.stack(batch, "sigmas", 1.0), self.args
        return velocity_distillation_terms(
            velocity,
            self.stack(batch, "teacher_velocities"),
            sigmas,
            weight=args.loss_weight,
            slope=args.loss_weight_slope,
        )

    def _transition(self, velocity: Tensor, batch: Batch) -> Terms:
        teacher, x = self.stack(batch, "teacher_velocities"), self.stack(batch, "states")
        levels = self.stack(batch, "sigmas", 1.0), self.stack(batch, "next_sigmas", 0.5)
        second = self.stack(batch, "second_sigmas", 0.5)[self.mask(batch)]
        student, teachers = (Stepping.of(self.args).transition(x, v, *levels, second) for v in (velocity, teacher))
        _, seen = self._velocity(velocity.detach(), batch)
        return transition_kl(student, teachers), seen

    def _dmd(self, velocity: Tensor, batch: Batch) -> Terms:
        made = x0_from_velocity(self.stack(batch, "states"), velocity, self.stack(batch, "sigmas", 1.0))
        return dmd_generator_terms(
            made,
            self.stack(batch, "compared_noises"),
            self.stack(batch, "compared_sigmas", 1.0),
            self.stack(batch, "teacher_velocities"),
            self.stack(batch, "critic_velocities"),
        )
