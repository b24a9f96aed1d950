"""The critic's loss: a clipped squared error of the values of states."""

from __future__ import annotations

from torch import Tensor

from stacx_core import Batch, ScalarHeadSpecialization
from stacx_core.objectives import Reducer
from stacx_plugin_grpo.checks import over_all_tokens
from stacx_plugin_grpo.objectives import clipped_value_loss


class CriticSpecialization(ScalarHeadSpecialization):
    """Moves the value of each state towards the return (Schulman et al. 2017), at most ``value_clip`` per rollout.

    The loss is ``value_loss_scale reduce(clipped_value_loss(V, v, G))`` with the values V now, v before the first
    update of this rollout, and the returns G.
    """

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of one micro-batch and its metrics; see the base class for shapes.

        Metrics: the numerator ``value_loss``; token means ``value_clipfrac``, ``value_mean``, ``return_mean``; and what
        ``summarize`` needs.
        """
        values = self.response_values(model_output, batch)
        returns = self.flat(batch, "returns")
        per_token, clipped = clipped_value_loss(values, self.flat(batch, "values"), returns, self.args.value_clip)
        loss = reducer(self.args.value_loss_scale * per_token)
        error = returns - values.detach()
        return loss, {
            "value_loss": loss.detach(),
            "value_clipfrac": self.mean_pair(clipped, batch),
            "value_mean": self.mean_pair(values, batch),
            "return_mean": self.mean_pair(returns, batch),
            "return_square": self.mean_pair(returns.double().square(), batch),
            "error_mean": self.mean_pair(error, batch),
            "error_square": self.mean_pair(error.double().square(), batch),
        }

    def waives(self) -> dict[str, str]:
        """Returns over all tokens read values of masked ones."""
        return over_all_tokens(self.args)

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Replace the second moments by ``explained_variance``, ``1 - Var(G - V) / Var(G)``.

        1 is a perfect critic, 0 one that knows no more than the mean; it is left out where all returns are equal.
        """
        rest = dict(metrics)
        error_mean, error_square = rest.pop("error_mean", 0.0), rest.pop("error_square", 0.0)
        spread = rest.pop("return_square", 0.0) - rest.get("return_mean", 0.0) ** 2
        if spread > 1e-12:
            rest["explained_variance"] = 1 - (error_square - error_mean**2) / spread
        return rest
