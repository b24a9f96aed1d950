"""From rewards to what is trained: votes, samples without a reward, pairs, averages, adapters."""

from __future__ import annotations

import sys

import pytest
import torch
from safetensors.torch import load_file

from stacx_core import Args
from stacx_plugin_diffusion.advantages import compute_advantages
from stacx_plugin_diffusion.averages import Following

REWARDS = '''
calls = 0

def some(media, prompts):
    """No reward for the first sample of a rollout; others by their mean."""
    values = media.flatten(1).mean(1)
    values[0] = float("nan")
    return values

def none(media, prompts):
    return [float("inf")] * len(media)

def equal(media, prompts):
    return [0.5] * len(media)

def odd(media, prompts):
    """Equal in the first rollout, by their mean after it."""
    global calls
    calls += 1
    return equal(media, prompts) if calls == 1 else some(media, prompts)
'''


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """The module `odd_rewards`, imported anew."""
    (tmp_path / "odd_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_rewards", raising=False)


def batch_of(rewards, groups, rollouts=None, removed=None, lengths=None):
    count = len(rewards)
    return {
        "rewards": rewards,
        "group_indices": groups,
        "rollout_ids": list(range(count)) if rollouts is None else rollouts,
        "removed": [0] * count if removed is None else removed,
        "response_lengths": [1] * count if lengths is None else lengths,
    }


def advantages(batch, std="global", clip=5.0):
    metrics = compute_advantages(batch, Args.of(advantage_std=std, advantage_clip=clip))
    return [values.tolist() for values in batch["advantages"]], metrics


EIGHT = ([0.2, 0.8, 0.5, 0.5, 1.0, 0.0, 1.0, 1.0], [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        ("global", [-0.825887, 0.825887, 0, 0, 0.688239, -2.064717, 0.688239, 0.688239]),
        ("group", [-1.413547, 1.413547, 0, 0, 0.577217, -1.731651, 0.577217, 0.577217]),
    ],
)
def test_advantages_of_two_groups(std, expected):
    found, metrics = advantages(batch_of(*EIGHT), std)
    assert [value for (value,) in found] == pytest.approx(expected, abs=1e-6)
    assert metrics == {"flat_groups": 0.0, "lone_groups": 0.0}


def test_a_rollout_in_several_samples_has_one_vote():
    """The first rollout is cut in two, of 2 and 1 states; the rewards 1, 2, 3 have mean 2."""
    batch = batch_of([1.0, 1.0, 2.0, 3.0], [0, 0, 0, 0], rollouts=[5, 5, 6, 7], lengths=[2, 1, 1, 3])
    found, _ = advantages(batch, "none")
    assert found == [[-1.0, -1.0], [-1.0], [0.0], [1.0, 1.0, 1.0]]


def test_advantages_are_clipped():
    found, _ = advantages(batch_of([0.0, 8.0], [0, 0]), "none", clip=3.0)
    assert found == [[-3.0], [3.0]]


def test_a_removed_sample_has_no_vote():
    batch = batch_of([1.0, 3.0, float("nan"), 9.0], [0, 0, 0, 1], removed=[0, 0, 1, 0], lengths=[1, 1, 2, 1])
    found, metrics = advantages(batch, "none")
    assert found == [[-1.0], [1.0], [0.0, 0.0], [0.0]]
    assert metrics["lone_groups"] == 1


@pytest.mark.parametrize("algorithm", ["flow_grpo", "mix_grpo", "diffusion_nft", "flow_dpo"])
def test_samples_without_a_reward_are_counted_and_trained_nowhere(train, metrics, rewards, tmp_path, algorithm):
    done = train(algorithm, "--rm-type", "odd_rewards:some")
    assert done.code == 0, done.err
    for line in metrics(tmp_path / "run"):
        assert line["rollout/without_reward"] == 1
        assert line["rollout/removed"] == (algorithm != "flow_dpo")
        assert line["train/grad_norm"] > 0
        if algorithm != "flow_dpo":
            assert line["rollout/loss_states"] == line["rollout/response_states"] * 5 / 6


@pytest.mark.parametrize("algorithm", ["flow_grpo", "diffusion_nft", "flow_dpo"])
@pytest.mark.parametrize("reward", ["none", "equal"])
def test_a_rollout_that_teaches_nothing_leaves_the_weights(train, metrics, rewards, tmp_path, reward, algorithm):
    flags = ("--nft-ref-coef", "0") if algorithm == "diffusion_nft" else ()
    done = train(algorithm, "--rm-type", f"odd_rewards:{reward}", *flags)
    assert done.code == 0, done.err
    for line in metrics(tmp_path / "run"):
        assert line["train/skipped_step"] == 1
        assert line.get("rollout/pairs", 0) == 0
        assert line["rollout/without_reward"] == (6 if reward == "none" else 0)


def test_a_rollout_without_a_pair_is_passed_over(train, metrics, rewards, tmp_path):
    done = train("flow_dpo", "--rm-type", "odd_rewards:odd", "--num-rollout", "3")
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert [line["rollout/pairs"] for line in lines] == [0, 1, 1]
    assert [line["train/skipped_step"] for line in lines] == [1, 0, 0]
    assert lines[1]["train/loss"] == pytest.approx(0.6931472, abs=1e-6)


@pytest.mark.parametrize("scale", ["constant", "data"])
def test_the_first_loss_of_pairs_is_the_logarithm_of_2(train, metrics, tmp_path, scale):
    done = train("flow_dpo", "--flow-dpo-beta-scale", scale, "--num-rollout", "1")
    assert done.code == 0, done.err
    assert metrics(tmp_path / "run")[0]["train/loss"] == pytest.approx(0.6931472, abs=1e-6)


def test_an_average_follows_by_its_decay():
    policy, average = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    policy.weight.data.fill_(4.0)
    average.weight.data.fill_(0.0)
    follow = Following(policy, average, lambda completed: {1: 0.5, 2: 0.75, 3: 0.0}[completed])
    seen = []
    for completed in (1, 2, 3):
        follow.after_update(completed)
        seen.append(average.weight.item())
    assert seen == [2.0, 2.5, 4.0]


def network_of(checkpoint, role):
    return load_file(checkpoint / role / "transformer" / "diffusion_pytorch_model.safetensors")


def test_the_average_of_a_run_is_the_recursion_over_its_checkpoints(train, digits_checkpoint, tmp_path):
    flags = ("--ema-decay", "0.7", "--num-rollout", "4", "--save-interval", "1", "--keep-checkpoints", "9")
    assert train("flow_sft", *flags).code == 0
    name = "blocks.0.attn.to_q.weight"
    expected = load_file(digits_checkpoint / "transformer" / "diffusion_pytorch_model.safetensors")[name]
    for rollout in range(1, 5):
        checkpoint = tmp_path / "run" / "checkpoints" / f"rollout_{rollout:06d}"
        policy, average = (network_of(checkpoint, role)[name] for role in ("policy", "average"))
        expected = 0.7 * expected + 0.3 * policy
        assert torch.allclose(average, expected, atol=1e-7)
        assert not torch.equal(average, policy)


def test_the_old_policy_of_a_run_follows_its_decay(train, digits_checkpoint, tmp_path):
    """Two updates a rollout: the decay is 0.001 times 2, 4 and 6."""
    flags = ("--num-steps-per-rollout", "2", "--num-rollout", "3", "--save-interval", "1", "--keep-checkpoints", "9")
    assert train("diffusion_nft", *flags).code == 0
    name = "blocks.0.ff.0.weight"
    expected = load_file(digits_checkpoint / "transformer" / "diffusion_pytorch_model.safetensors")[name]
    for rollout in range(1, 4):
        checkpoint = tmp_path / "run" / "checkpoints" / f"rollout_{rollout:06d}"
        decay = 0.002 * rollout
        expected = decay * expected + (1 - decay) * network_of(checkpoint, "policy")[name]
        assert torch.allclose(network_of(checkpoint, "old")[name], expected, atol=1e-7)
