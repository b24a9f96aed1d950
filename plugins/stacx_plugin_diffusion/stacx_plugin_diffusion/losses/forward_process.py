"""Learning from rewards on the forward process: `diffusion_nft`."""

from __future__ import annotations

from torch import Tensor

from stacx_core import Batch
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.objectives import Terms, awm_log_prob, clipped_terms, nft_terms, optimality, velocity_error


class ForwardProcess(FlowSpecialization):
    """``--nft-loss`` on noised samples, plus ``--nft-ref-coef`` times the distance from the reference."""

    def terms(self, velocity: Tensor, batch: Batch) -> Terms:
        """See the base class; reports the parts of the loss."""
        terms, seen = (self._nft if self.args.nft_loss == "nft" else self._awm)(velocity, batch)
        if not self.args.nft_ref_coef:
            return terms, seen
        distance = velocity_error(velocity, self.stack(batch, "ref_velocities"))
        return terms + self.args.nft_ref_coef * distance, {**seen, "ref_distance": distance.detach()}

    def _nft(self, velocity: Tensor, batch: Batch) -> Terms:
        args, (x0, noise, sigma) = self.args, self._data(batch)
        optimal = optimality(self.stack(batch, "advantages"), args.advantage_clip, args.nft_mode)
        old = self.stack(batch, "old_velocities")
        return nft_terms(velocity, old, x0, noise, sigma, optimal, beta=args.nft_beta, scale=args.advantage_clip)

    def _awm(self, velocity: Tensor, batch: Batch) -> Terms:
        args, (x0, noise, sigma) = self.args, self._data(batch)
        velocities = velocity, self.stack(batch, "old_velocities")
        new, old = (awm_log_prob(v, x0, noise, sigma, args.awm_weight) for v in velocities)
        return clipped_terms(new, old, self.stack(batch, "advantages"), args.awm_clip)

    def _data(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Clean latents and noise ``[N, *D]``, noise levels ``[N]``."""
        noise = self.stack(batch, "noises")
        return noise - self.stack(batch, "targets"), noise, self.stack(batch, "sigmas", 1.0)
