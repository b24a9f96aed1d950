"""Group advantages: worked values, groups that say nothing, several rewards, order and gathering."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stacx_plugin_diffusion.objectives import group_advantages, multi_reward_advantages
from stacx_plugin_diffusion.objectives.advantages import ADVANTAGE_STDS

REWARDS = torch.tensor([0.2, 0.8, 0.5, 0.5, 1, 0, 1, 1])
GROUPS = torch.tensor([7, 7, 7, 7, 3, 3, 3, 3])
GLOBAL = [-0.825887, 0.825887, 0, 0, 0.688239, -2.064717, 0.688239, 0.688239]
GROUP = [-1.413547, 1.413547, 0, 0, 0.577217, -1.731651, 0.577217, 0.577217]
BATCHES = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=20)


@pytest.mark.parametrize(("std", "expected"), [("global", GLOBAL), ("group", GROUP)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(std, expected, dtype):
    found = group_advantages(REWARDS.to(dtype), GROUPS, std=std)
    assert found.values.dtype == dtype
    assert found.values.tolist() == pytest.approx(expected, abs=5e-7)
    assert found.informative.all()


def test_worked_values_without_division():
    values = group_advantages(REWARDS, GROUPS, std="none").values
    assert values.tolist() == pytest.approx([-0.3, 0.3, 0, 0, 0.25, -0.75, 0.25, 0.25], abs=5e-7)


@pytest.mark.parametrize("std", ADVANTAGE_STDS)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, -1e6, 0.0])
def test_equal_rewards_give_exactly_zero(std, reward):
    found = group_advantages(torch.tensor([reward] * 3 + [0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]), std=std)
    assert found.values[:3].tolist() == [0.0] * 3
    assert found.values[3] < 0 < found.values[4]
    assert found.informative.tolist() == [False] * 3 + [True] * 2
    assert found.flat_share.item() == 0.5
    assert (
        group_advantages(torch.tensor([reward] * 3), torch.zeros(3, dtype=torch.int64), std=std).values.tolist()
        == [0.0] * 3
    )


@pytest.mark.parametrize("std", ADVANTAGE_STDS)
def test_a_group_of_one_gets_zero(std):
    found = group_advantages(torch.tensor([5.0, 0.0, 1.0]), torch.tensor([4, 9, 9]), std=std)
    assert found.values[0] == 0
    assert found.informative.tolist() == [False, True, True]
    assert found.alone.item() == 1
    assert found.flat_share.item() == 0.5


@pytest.mark.parametrize("std", ADVANTAGE_STDS)
def test_what_is_not_counted_counts_nowhere(std):
    rewards = torch.cat([REWARDS, torch.tensor([torch.nan, torch.inf, 3.0])])
    groups = torch.cat([GROUPS, torch.tensor([7, 3, 5])])
    counted = torch.arange(11) < 8
    found = group_advantages(rewards, groups, std=std, counted=counted)
    expected = group_advantages(REWARDS, GROUPS, std=std)
    torch.testing.assert_close(found.values[:8], expected.values)
    assert found.values[8:].tolist() == [0.0] * 3
    assert not found.informative[8:].any()
    assert found.flat_share.item() == 0


def test_nothing_counted_is_nothing():
    found = group_advantages(torch.tensor([torch.nan]), torch.tensor([0]), counted=torch.tensor([False]))
    assert found.values.tolist() == [0.0]
    assert found.flat_share.item() == 0


@pytest.mark.parametrize("std", ADVANTAGE_STDS)
@given(BATCHES)
def test_a_group_sums_to_zero(std, batch):
    rewards, groups = torch.tensor([r for r, _ in batch], dtype=torch.float64), torch.tensor([g for _, g in batch])
    values = group_advantages(rewards, groups, std=std).values
    for group in groups.unique():
        assert values[groups == group].sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("std", ADVANTAGE_STDS)
@given(BATCHES, st.randoms(use_true_random=False))
def test_the_order_of_a_gathered_batch_does_not_matter(std, batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    rewards, groups = torch.tensor([r for r, _ in batch], dtype=torch.float64), torch.tensor([g for _, g in batch])
    plain = group_advantages(rewards, groups, std=std)
    shuffled = group_advantages(rewards[order], groups[order], std=std)
    torch.testing.assert_close(shuffled.values, plain.values[order], rtol=0, atol=1e-9)
    assert torch.equal(shuffled.informative, plain.informative[order])


@given(BATCHES, st.floats(-3, 3))
def test_a_constant_added_to_a_group_changes_nothing(batch, constant):
    rewards, groups = torch.tensor([r for r, _ in batch], dtype=torch.float64), torch.tensor([g for _, g in batch])
    moved = torch.where(groups == 0, rewards + constant, rewards)
    before, after = (group_advantages(r, groups, std="none").values for r in (rewards, moved))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_several_rewards_are_added_or_normalised_apart():
    wide = REWARDS * 100
    rewards, weights = {"a": REWARDS, "b": wide}, {"a": 1.0, "b": 0.5}
    added = multi_reward_advantages(rewards, weights, GROUPS, std="group")
    torch.testing.assert_close(added.values, group_advantages(REWARDS + wide / 2, GROUPS, std="group").values)
    apart = multi_reward_advantages(rewards, weights, GROUPS, combine="gdpo", std="group")
    one, two = (group_advantages(r, GROUPS, std="group").values for r in (REWARDS, wide))
    torch.testing.assert_close(apart.values, one + two / 2)


def test_a_sample_informs_if_any_reward_does():
    rewards = {"flat": torch.ones(4), "not": torch.tensor([0.0, 1.0, 2.0, 2.0])}
    found = multi_reward_advantages(
        rewards, {"flat": 1.0, "not": 1.0}, torch.tensor([0, 0, 1, 1]), combine="gdpo", std="group"
    )
    assert found.informative.tolist() == [True, True, False, False]
    assert found.values[2:].tolist() == [0.0, 0.0]
    assert found.flat_share.item() == 0.75


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: group_advantages(REWARDS, GROUPS, std="batch"), "choose one of group, global, none"),
        (lambda: group_advantages(REWARDS, GROUPS[:2]), r"rewards \[8\], group_ids \[2\]"),
        (lambda: group_advantages(REWARDS, GROUPS, counted=torch.ones(8, 1)), "counted"),
        (lambda: group_advantages(REWARDS / 0, GROUPS), "out of `counted`"),
        (lambda: multi_reward_advantages({}, {}, GROUPS), "one weight per reward"),
        (lambda: multi_reward_advantages({"a": REWARDS}, {"b": 1.0}, GROUPS), r"rewards \['a'\], weights \['b'\]"),
        (lambda: multi_reward_advantages({"a": REWARDS}, {"a": 1.0}, GROUPS, combine="max"), "choose one of sum, gdpo"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
