"""The direction of a preference loss, on log-probs and on scalar rewards, sound and with its sides swapped."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core import CausalDecoderSpecialization, ModelRole, ScalarHeadSpecialization, TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.objectives import Reducer
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import CHECKS, CheckResult
from stacx_core.testing.suite import Suite

Terms = tuple[Tensor, dict[str, Tensor]]


def compare(evidence: Tensor, batch: Batch, reducer: Reducer, sign: float = 1.0) -> Terms:
    """-log sigmoid of the difference of each pair, times the sign."""
    sides = torch.tensor([1.0 if chosen else -1.0 for chosen in batch["is_chosen"]])
    pairs = torch.tensor(batch["pair_ids"])
    margins = [(sides * evidence)[pairs == pair].sum() for pair in pairs.unique()]
    return reducer(-torch.nn.functional.logsigmoid(sign * torch.stack(margins)).sum()), {}


class Comparison(CausalDecoderSpecialization):
    """DPO without a reference."""

    sign = 1.0

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> Terms:
        log_probs, _ = self.response_log_probs(model_output, batch)
        evidence = torch.stack([part.sum() for part in log_probs.split(batch["response_lengths"])])
        return compare(evidence, batch, reducer, self.sign)


class Swapped(Comparison):
    """The same with its sides swapped."""

    sign = -1.0


class Rewarded(ScalarHeadSpecialization):
    """A reward model that takes the second of a pair for the rejected one."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> Terms:
        order = [batch["pair_ids"].index(pair) == at for at, pair in enumerate(batch["pair_ids"])]
        return compare(self.last_token_values(model_output, batch), {**batch, "is_chosen": order}, reducer)


def preference(loss: type, head: str = "lm") -> CheckResult:
    role = ModelRole("policy", loss, head=head, reads={"pair_ids": (), "is_chosen": ()})  # type: ignore[arg-type]
    return Suite(TrainingConfig("pairs", (role,)), Ranks()).run(CHECKS["preference"])


def test_a_sound_comparison_passes() -> None:
    assert preference(Comparison).status == "pass"


def test_swapped_sides_are_found() -> None:
    result = preference(Swapped)
    assert result.status == "fail"
    assert "a step does not make sample 0, which is chosen, more likely" in result.reason
    assert len(result.smallest) == 2


def test_sides_by_order_are_found() -> None:
    result = preference(Rewarded, head="scalar")
    assert result.status == "fail"
    assert "a step does not make sample 4, which is rejected, less likely" in result.reason
