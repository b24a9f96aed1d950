"""The policy's loss: clipped policy gradient, optional importance correction, entropy bonus and KL anchor."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from stacx_core import Batch, CausalDecoderSpecialization
from stacx_core.objectives import Reducer, kl_estimate
from stacx_plugin_grpo.checks import by_sequence, over_all_tokens, rejection_bounds
from stacx_plugin_grpo.objectives import (
    cispo_loss,
    clipped_surrogate,
    effective_sample_size,
    importance_ratios,
    importance_weights,
    inside,
    opsm_mask,
    ppo_clip_loss,
    sequence_counts,
    sequence_log_ratio,
    sequence_sums,
    without_veto,
)
from stacx_plugin_grpo.objectives.policy import PolicyLoss

Terms = tuple[Tensor, dict[str, Tensor]]
"""A per-token ``[N]`` term of the loss, and metrics."""


class ActorSpecialization(CausalDecoderSpecialization):
    """The actor of the family (Shao et al. 2024, eq. 3), with the knobs that practice has added.

    The loss is ``reduce(w pg) - entropy_coef reduce(H) + kl_loss_coef reduce(KL)``. With s the log-probs now, o
    those before the first update of this rollout, b the engine's and r the reference's:

    - ``pg`` is ``ppo_clip_loss(s, o, A)``; ``--use-rollout-logprobs`` puts b in the place of o. A batch without
      ``log_probs`` is trained in a single on-policy step: o is s itself without its gradient, and the ratio is 1.
    - ``w`` is 1, times the importance weight of o and b under ``--use-tis``, and 0 for what ``--use-rs``,
      ``--rs-veto-threshold`` or ``--use-opsm`` leave out.
    - ``KL`` is ``kl_estimate(s, r)``, under ``--use-unbiased-kl`` times ``exp(s - o)``.
    - ``H`` is the entropy of the full distribution at the sampling temperature.
    """

    kl_loss_type: ClassVar[str] = "low_var_kl"
    """Estimator of the KL in the loss while ``--kl-loss-type`` is unset."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> Terms:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics: numerators ``pg_loss``, ``kl_loss`` and ``entropy_loss`` (the terms of the loss, before their
        coefficients); token means ``entropy``, ``ppo_kl`` (``o - s``), ``ratio_mean`` and those of ``policy_loss``; per
        sequence ``ess`` (effective sample size of the ratios); and those of ``correction``.
        """
        args = self.args
        log_probs, entropy = self.response_log_probs(model_output, batch, with_entropy=True)
        assert entropy is not None
        before = self.flat(batch, "log_probs") if "log_probs" in batch else log_probs.detach()
        old = self.flat(batch, "rollout_log_probs") if args.use_rollout_logprobs else before
        per_token, metrics = self.policy_loss(log_probs, old, batch)
        weights, measured = self.correction(before, batch)
        if args.use_opsm:
            kept = opsm_mask(log_probs, old, self.flat(batch, "advantages"), *_shape(batch), args.opsm_delta)
            weights, measured["opsm_frac"] = weights * kept, self._sequences_with(1 - kept, batch)
        loss = reducer(per_token * weights)
        metrics |= {**measured, **self._drift(log_probs, old, batch)}
        metrics |= {"entropy": self.mean_pair(entropy, batch), "pg_loss": loss.detach()}
        if args.entropy_coef != 0:
            entropy_loss = -reducer(entropy)
            loss = loss + args.entropy_coef * entropy_loss
            metrics["entropy_loss"] = entropy_loss.detach()
        if args.use_kl_loss:
            kl_loss = reducer(self._kl(log_probs, old, batch))
            loss = loss + args.kl_loss_coef * kl_loss
            metrics["kl_loss"] = kl_loss.detach()
        return loss, metrics

    def waives(self) -> dict[str, str]:
        """What is decided by a whole sequence changes when the sequence is cut."""
        return {**by_sequence(self.args), **over_all_tokens(self.args)}

    def policy_loss(self, log_probs: Tensor, old: Tensor, batch: Batch) -> Terms:
        """The per-token policy loss ``[N]`` before any correction, and the share of tokens whose loss was clipped."""
        args = self.args
        bounds = args.eps_clip, args.eps_clip_high, args.eps_clip_c
        return self._clipped(ppo_clip_loss(log_probs, old, self.flat(batch, "advantages"), *bounds), batch)

    def _clipped(self, policy: PolicyLoss, batch: Batch) -> Terms:
        return policy.loss, {
            "clipfrac": self.mean_pair(policy.clipped, batch),
            "dual_clipfrac": self.mean_pair(policy.dual_clipped, batch),
        }

    def correction(self, before: Tensor, batch: Batch) -> Terms:
        """What multiplies the policy loss of each token ``[N]`` for the mismatch of trainer and engine.

        Metrics, where the engine delivered log-probs: token means ``train_rollout_ratio`` and
        ``train_rollout_abs_diff``; ``tis_weight``, ``tis_clipfrac`` and ``rs_frac`` (rejected tokens); and per sequence
        ``veto_frac``. All count every trained token, rejected ones too.
        """
        args, weights, metrics = self.args, torch.ones_like(before), dict[str, Tensor]()
        if "rollout_log_probs" not in batch:
            return weights, metrics
        engine = self.flat(batch, "rollout_log_probs")
        ratios = importance_ratios(before, engine, *_shape(batch))
        metrics["train_rollout_ratio"] = self.mean_pair(ratios, batch)
        metrics["train_rollout_abs_diff"] = self.mean_pair((before - engine).abs(), batch)
        if args.use_tis:
            ratios = importance_ratios(before, engine, *_shape(batch), args.tis_level)
            tis, bounded = importance_weights(ratios, args.tis_clip, args.tis_clip_low, args.tis_mode)
            metrics |= {"tis_weight": self.mean_pair(tis, batch), "tis_clipfrac": self.mean_pair(bounded, batch)}
            weights = weights * tis
        if args.use_rs:
            lower, upper = rejection_bounds(args)
            kept = inside(importance_ratios(before, engine, *_shape(batch), args.rs_level), upper, lower)
            weights, metrics["rs_frac"] = weights * kept, self.mean_pair(1 - kept, batch)
        if args.rs_veto_threshold is not None:
            kept = without_veto(before, engine, *_shape(batch), args.rs_veto_threshold)
            weights, metrics["veto_frac"] = weights * kept, self._sequences_with(1 - kept, batch)
        return weights, metrics

    def _drift(self, log_probs: Tensor, old: Tensor, batch: Batch) -> dict[str, Tensor]:
        """How far the policy has moved from ``old``."""
        ratios = importance_ratios(log_probs, old, *_shape(batch))
        sizes = effective_sample_size(ratios, *_shape(batch))
        return {
            "ppo_kl": self.mean_pair(old - log_probs, batch),
            "ratio_mean": self.mean_pair(ratios, batch),
            "ess": torch.stack([sizes.sum(), self._sequences(batch)]),
        }

    def _kl(self, log_probs: Tensor, old: Tensor, batch: Batch) -> Tensor:
        """Per-token divergence ``[N]`` from the reference."""
        reference = self.flat(batch, "ref_log_probs")
        sampled_from = old if self.args.use_unbiased_kl else None
        return kl_estimate(log_probs, reference, self.args.get("kl_loss_type", self.kl_loss_type), sampled_from)

    def _sequences(self, batch: Batch) -> Tensor:
        """0-d fp64: how many sequences have a trained token."""
        return (sequence_counts(batch["loss_masks"]) > 0).sum().double()

    def _sequences_with(self, flags: Tensor, batch: Batch) -> Tensor:
        """``[2]``: sequences with a flagged trained token, and sequences with a trained token."""
        return torch.stack([(sequence_sums(flags, *_shape(batch)) > 0).sum().double(), self._sequences(batch)])


class GspoActor(ActorSpecialization):
    """GSPO (Zheng et al. 2025): the actor with the ratio of the sequence in place of the token's."""

    def waives(self) -> dict[str, str]:
        """The ratio is the sequence's."""
        return {**super().waives(), "siblings": "the importance ratio is that of the whole sequence"}

    def policy_loss(self, log_probs: Tensor, old: Tensor, batch: Batch) -> Terms:
        """As the base class's; a clipped sequence counts with all its tokens."""
        args = self.args
        log_ratio = sequence_log_ratio(log_probs, old, *_shape(batch))
        bounds = args.eps_clip, args.eps_clip_high, args.eps_clip_c
        return self._clipped(clipped_surrogate(log_ratio, self.flat(batch, "advantages"), *bounds), batch)


class CispoActor(ActorSpecialization):
    """CISPO (MiniMax-M1, 2025): the actor with a clipped weight on the policy gradient instead of a clipped loss."""

    def policy_loss(self, log_probs: Tensor, old: Tensor, batch: Batch) -> Terms:
        """As the base class's, with the metric ``cispo_clipfrac``."""
        advantages = self.flat(batch, "advantages")
        loss, clipped = cispo_loss(log_probs, old, advantages, self.args.eps_clip, self.args.eps_clip_high)
        return loss, {"cispo_clipfrac": self.mean_pair(clipped, batch)}


class ReinforceBaselineActor(ActorSpecialization):
    """REINFORCE++-baseline (Hu et al. 2025): the actor with another estimator of the KL in the loss."""

    kl_loss_type = "k2"


def _shape(batch: Batch) -> tuple[list[int], list[Tensor]]:
    return batch["response_lengths"], batch["loss_masks"]
