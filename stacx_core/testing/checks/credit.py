"""That a reward reaches the samples and tokens that earned it, through advantages that are constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stacx_core.data.batch import Batch
from stacx_core.objectives.aggregation import Reducer
from stacx_core.specialization.causal_decoder import CausalDecoderSpecialization
from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.rows import Row, log_probs_of
from stacx_core.testing.trial import Trial, require_same_gradients, require_tokens, show

BUMPS = (1.0, -3.0)
POLICY_TOLERANCE = 1e-4
"""Old log-probs are float32, so a ratio is 1 up to 1e-6."""


@check("defaults", shrinks=False, waivable=True)
def reward_credit(trial: Trial) -> None:
    """Another reward for one rollout changes its gradient, and that of its group or of the whole batch, no other.

    Finds: rewards matched to the wrong sample or group.
    """
    if "rewards" not in trial.subject.given_keys():
        raise NotApplicable("the role reads no rewards")
    grouped = "group_indices" in trial.subject.active_reads()
    trained = [row for row in trial.rows if trial.outcome.gradients[row.index].any()]
    for chosen in _one_per_group(trained):
        changed = _changed(trial, chosen)
        own = {row.index for row in trained if row.sample.rollout_id == chosen.sample.rollout_id}
        near = {row.index for row in trained if row.sample.group_index == chosen.sample.group_index} if grouped else own
        far = {row.index for row in trained} - near
        if not changed & own:
            raise Wrong(f"another reward for sample {chosen.index} does not change its gradient")
        if not changed <= near and not far <= changed:
            strangers = sorted(changed - near)
            raise Wrong(
                f"another reward for sample {chosen.index} changes the gradient of samples {strangers} of other "
                f"groups, though not of all: {sorted(far - changed)} stay as they are"
            )


def _one_per_group(rows: Sequence[Row]) -> list[Row]:
    """The first row of each group whose rollouts number three or more: of two, normalized rewards may not change."""
    groups: dict[int | None, dict[int | None, Row]] = {}
    for row in rows:
        groups.setdefault(row.sample.group_index, {}).setdefault(row.sample.rollout_id, row)
    return [next(iter(rollouts.values())) for rollouts in groups.values() if len(rollouts) >= 3]


def _changed(trial: Trial, chosen: Row) -> set[int]:
    """Samples whose gradient moves when the reward of a rollout does."""
    changed: set[int] = set()
    for bump in BUMPS:
        reward = float(chosen.sample.reward or 0.0) + bump  # type: ignore[arg-type]
        rollout = chosen.sample.rollout_id
        rows = [row.with_sample(reward=reward) if row.sample.rollout_id == rollout else row for row in trial.rows]
        found = trial.run(rows).gradients
        scale = max(float(gradient.abs().max()) for gradient in trial.outcome.gradients.values())
        changed |= {
            index
            for index, gradient in trial.outcome.gradients.items()
            if float((found[index] - gradient).abs().max()) > 1e-9 * scale
        }
    return changed


@check("defaults", shrinks=False, waivable=True)
def end_reward(trial: Trial) -> None:
    """With a single reward that is not zero, no divergence and no values, the last trained token of its sample has an
    advantage.

    Finds: rewards put on a masked token, on a token of another position, or before the end of the response.
    """
    if "rewards" not in trial.subject.given_keys():
        raise NotApplicable("the role reads no rewards")
    key = next((key for key in ("advantages", "returns") if key in trial.prepared), None)
    if key is None:
        raise NotApplicable("no stage of the role writes advantages or returns")
    rollouts = [row.sample.rollout_id for row in trial.rows]
    for position, row in enumerate(trial.rows):
        mask = torch.tensor(row.sample.mask)
        if row.sample.removed or not mask.any() or rollouts.count(row.sample.rollout_id) > 1:
            continue
        batch = trial.prepare([_neutral(other, float(other is row)) for other in trial.rows])
        last = int(mask.nonzero()[-1])
        if float(batch[key][position][last]) == 0:
            raise Wrong(
                f"only sample {row.index} has a reward, and {key} is 0 at its last trained token, {last} of "
                f"{row.sample.response_length}: {[round(v, 4) for v in batch[key][position].tolist()]}"
            )


def _neutral(row: Row, reward: float) -> Row:
    """The row with this reward, values of 0, and every model of one opinion."""
    same = row.keys["log_probs"]
    keys = {**row.keys, "rollout_log_probs": same, "ref_log_probs": same, "values": torch.zeros_like(same)}
    return replace(row.with_sample(reward=reward), keys=keys)


class _Reinforce(CausalDecoderSpecialization):
    """The loss whose gradient every policy gradient has where the ratio is 1: -A log pi."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Reducer) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs, _ = self.response_log_probs(model_output, batch)
        return reducer(-self.flat(batch, "advantages") * log_probs), {}


@check("defaults", shrinks=False, waivable=True)
def policy_gradient(trial: Trial) -> None:
    """Where all policies agree, the gradient is that of -A log pi, and zero where the advantages are.

    Finds: advantages or weights through which a gradient flows, a clip or a ratio in the wrong place, a sign.
    """
    require_tokens(trial)
    subject = trial.subject
    if subject.role.head != "lm" or "advantages" not in subject.active_reads():
        raise NotApplicable("the role trains no policy on advantages")
    rows = [_agreeing(row.with_sample(rollout_id=row.index), subject.args.rollout_temperature) for row in trial.rows]
    batch, outputs = trial.prepare(rows), subject.outputs(rows)
    weighted, plain = (_with_advantages(batch, scale) for scale in (1.0, 0.0))
    expected = subject.step(weighted, outputs, specialization=_Reinforce(subject.args)).gradients
    with_them, without = (subject.step(b, outputs).gradients for b in (weighted, plain))
    found = {index: gradient - without[index] for index, gradient in with_them.items()}
    require_same_gradients(found, expected, "from the advantages (that of -A log pi is meant)", POLICY_TOLERANCE)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    for index, gradient in without.items():
        if float(gradient.abs().max()) > POLICY_TOLERANCE * scale:
            raise Wrong(
                f"with advantages of 0, and every policy the same, the gradient of sample {index} is "
                f"{show(gradient[gradient.abs().amax(-1).argmax()])}: something beside them is differentiated"
            )


def _agreeing(row: Row, temperature: float) -> Row:
    """The row with the model's own log-probs for every policy's."""
    own = log_probs_of(row.sample, row.output, temperature).float()
    return replace(row, keys={**row.keys, "log_probs": own, "rollout_log_probs": own, "ref_log_probs": own})


def _with_advantages(batch: Batch, scale: float) -> Batch:
    """The batch with advantages that differ from sample to sample and are constant within each."""
    lengths = batch["response_lengths"]
    values = [scale * (0.5 + position % 3) * (-1) ** position for position in range(len(lengths))]
    return {**batch, "advantages": [torch.full((n,), value) for n, value in zip(lengths, values, strict=True)]}
