"""The policy's loss: clipped policy gradient, optional importance correction, entropy bonus and KL anchor."""

from __future__ import annotations

import math

from torch import Tensor

from stacx_core import Batch, CausalDecoderSpecialization
from stacx_core.objectives import Reducer, kl_estimate
from stacx_plugin_grpo.objectives import ppo_clip_loss, truncated_importance_weights


class ActorSpecialization(CausalDecoderSpecialization):
    """GRPO's actor (Shao et al. 2024, eq. 3), with the knobs that practice has added.

    The loss is ``reduce(pg) - entropy_coef reduce(H) + kl_loss_coef reduce(KL)``. With s the log-probs now, o
    those before the first update of this rollout, b the engine's and r the reference's:

    - ``pg`` is ``ppo_clip_loss(s, o, A)``, times the truncated weight ``exp(o - b)`` under ``--use-tis``;
      ``--use-rollout-logprobs`` puts b in the place of o. A batch without ``log_probs`` is trained in a
      single on-policy step: o is s itself without its gradient, and the ratio is 1.
    - ``KL`` is ``kl_estimate(s, r)``, under ``--use-unbiased-kl`` times ``exp(s - o)``.
    - ``H`` is the entropy of the full distribution at the sampling temperature.
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics: numerators ``pg_loss``, ``kl_loss`` and ``entropy_loss`` (the terms of the loss, before their
        coefficients); token means ``entropy``, ``clipfrac``, ``dual_clipfrac``, ``ppo_kl`` (``o - s``),
        ``ratio_mean``, ``tis_clipfrac``, and, where the engine delivered log-probs, ``train_rollout_ratio``
        and ``train_rollout_abs_diff``.
        """
        args = self.args
        log_probs, entropy = self.response_log_probs(model_output, batch, with_entropy=True)
        assert entropy is not None
        before = self.flat(batch, "log_probs") if "log_probs" in batch else log_probs.detach()
        old = self.flat(batch, "rollout_log_probs") if args.use_rollout_logprobs else before
        per_token, metrics = self._policy_loss(log_probs, old, batch)
        metrics["entropy"] = self.mean_pair(entropy, batch)
        if "rollout_log_probs" in batch:
            metrics |= self._mismatch_metrics(before, batch)
        if args.use_tis:
            weights, clipped = truncated_importance_weights(
                before, self.flat(batch, "rollout_log_probs"), args.tis_clip, args.tis_clip_low
            )
            per_token = per_token * weights
            metrics["tis_clipfrac"] = self.mean_pair(clipped, batch)
        loss = reducer(per_token)
        metrics["pg_loss"] = loss.detach()
        if args.entropy_coef != 0:
            entropy_loss = -reducer(entropy)
            loss = loss + args.entropy_coef * entropy_loss
            metrics["entropy_loss"] = entropy_loss.detach()
        if args.use_kl_loss:
            kl_loss = reducer(self._kl(log_probs, old, batch))
            loss = loss + args.kl_loss_coef * kl_loss
            metrics["kl_loss"] = kl_loss.detach()
        return loss, metrics

    def _policy_loss(self, log_probs: Tensor, old: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Per-token clipped loss ``[N]``, and how far the policy has moved from ``old``."""
        args = self.args
        advantages = self.flat(batch, "advantages")
        policy = ppo_clip_loss(log_probs, old, advantages, args.eps_clip, args.eps_clip_high, args.eps_clip_c)
        return policy.loss, {
            "clipfrac": self.mean_pair(policy.clipped, batch),
            "dual_clipfrac": self.mean_pair(policy.dual_clipped, batch),
            "ppo_kl": self.mean_pair(old - log_probs, batch),
            "ratio_mean": self.mean_pair(policy.ratio, batch),
        }

    def _kl(self, log_probs: Tensor, old: Tensor, batch: Batch) -> Tensor:
        """Per-token divergence ``[N]`` from the reference."""
        reference = self.flat(batch, "ref_log_probs")
        sampled_from = old if self.args.use_unbiased_kl else None
        return kl_estimate(log_probs, reference, self.args.kl_loss_type, sampled_from)

    def _mismatch_metrics(self, before: Tensor, batch: Batch) -> dict[str, Tensor]:
        """How far the engine's log-probs are from the trainer's, before the first update."""
        engine = self.flat(batch, "rollout_log_probs")
        ratio, _ = truncated_importance_weights(before, engine, clip=math.inf)
        return {
            "train_rollout_ratio": self.mean_pair(ratio, batch),
            "train_rollout_abs_diff": self.mean_pair((before - engine).abs(), batch),
        }
