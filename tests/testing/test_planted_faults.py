"""Plugins with one fault each: `stacx check` catches every one, and the right check names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stacx_core


@dataclass(frozen=True)
class Fault:
    """What is planted, which check must find it, and words of its message."""

    about: str
    check: str
    says: str
    loss: str = ""
    stage: str = ""


FAULTS = {
    "mask_ignored": Fault(
        "The loss sums over every response token.",
        "masked_rows",
        "which has mask 0",
        loss="""
        def compute_loss(self, model_output, batch, reducer):
            rows = torch.cat([
                torch.arange(start + total - response - 1, start + total - 1)
                for start, total, response in zip(
                    batch["cu_seqlens"].tolist(), batch["total_lengths"], batch["response_lengths"]
                )
            ])
            targets = batch["tokens"][0, rows + 1]
            log_probs = model_output[rows].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            return (-torch.cat(batch["advantages"]) * log_probs).sum(), {}
        """,
    ),
    "mean_of_micro_batch_means": Fault(
        "The loss is the mean over the tokens of the micro-batch.",
        "micro_batch_split",
        "with micro-batches of 1",
        loss="""
        def compute_loss(self, model_output, batch, reducer):
            log_probs, _ = self.response_log_probs(model_output, batch)
            kept = self.per_token(log_probs, batch)[self.mask(batch)]
            return kept.sum() / max(len(kept), 1), {}
        """,
    ),
    "advantage_not_detached": Fault(
        "The divergence from the old policy is taken off the advantages, with its gradient.",
        "policy_gradient",
        "something beside them is differentiated",
        loss="""
        def advantages(self, log_probs, batch):
            return self.flat(batch, "advantages") - 0.1 * (log_probs - self.flat(batch, "log_probs"))
        """,
    ),
    "clipped_branch_not_reduced": Fault(
        "The maximum is taken of a reduced and an unreduced branch.",
        "loss_value",
        "not 0-d: hand every per-token term to the reducer",
        loss="""
        def compute_loss(self, model_output, batch, reducer):
            log_probs, _ = self.response_log_probs(model_output, batch)
            ratio, advantages = self.ratio(log_probs, batch), self.flat(batch, "advantages")
            clipped = -ratio.clamp(0.8, 1.2) * advantages
            return torch.maximum(reducer(-ratio * advantages), clipped), {}
        """,
    ),
    "whitening_per_micro_batch": Fault(
        "The advantages are whitened in the loss.",
        "micro_batch_split",
        "with micro-batches of",
        loss="""
        def advantages(self, log_probs, batch):
            values, mask = self.flat(batch, "advantages"), self.mask(batch)
            kept = values[mask]
            mean = kept.sum() / max(len(kept), 1)
            deviation = ((kept - mean).square().sum() / max(len(kept), 1)).sqrt()
            return (values - mean) / (deviation + 1e-4)
        """,
    ),
    "groups_by_reshape": Fault(
        "Groups are rows of a table; a batch that is no full table is one group.",
        "groups_by_id",
        "every group's rewards are equal, and the advantage of sample 0",
        stage="""
        def stage(batch, args):
            rewards = torch.tensor(batch["rewards"]) * torch.tensor([bool(mask.any()) for mask in batch["loss_masks"]])
            rewards = rewards.nan_to_num()
            size = args.n_samples_per_prompt
            table = rewards.view(-1, size) if len(rewards) % size == 0 else rewards.view(1, -1)
            values = ((table - table.mean(-1, keepdim=True)) / (table.std(-1, keepdim=True) + 1e-6)).flatten()
            batch["advantages"] = [v.repeat(n) for v, n in zip(values, batch["response_lengths"])]
            return {"groups": float(len(batch["group_indices"]))}
        """,
    ),
    "metric_with_a_graph": Fault(
        "A metric is not detached.",
        "metrics",
        "'pg_loss' carries a graph",
        loss="""
        def compute_loss(self, model_output, batch, reducer):
            loss, _ = super().compute_loss(model_output, batch, reducer)
            return loss, {"pg_loss": loss}
        """,
    ),
    "reward_on_the_wrong_token": Fault(
        "The reward is put on the row that predicts the last token, as if rows were tokens.",
        "end_reward",
        "advantages is 0 at its last trained token",
        stage="""
        def stage(batch, args):
            batch["advantages"] = []
            for reward, mask in zip(batch["rewards"], batch["loss_masks"]):
                per_token = torch.zeros(len(mask))
                if mask.any():
                    per_token[max(int(mask.nonzero()[-1]) - 1, 0)] = reward
                batch["advantages"].append(per_token.flip(0).cumsum(0).flip(0) * mask)
            return {"groups": float(len(batch["group_indices"]))}
        """,
    ),
    "nan_from_exp": Fault(
        "The ratio is the exponential of whatever the difference is.",
        "extreme_log_ratios",
        "with log_probs at -10000",
        loss="""
        def ratio(self, log_probs, batch):
            return (log_probs - self.flat(batch, "log_probs")).exp()
        """,
    ),
    "batch_changed_in_place": Fault(
        "The advantages are scaled in place.",
        "batch_unchanged",
        "changes the batch key 'advantages' in place",
        loss="""
        def advantages(self, log_probs, batch):
            for values in batch["advantages"]:
                values.mul_(0.5)
            return self.flat(batch, "advantages")
        """,
    ),
    "target_a_position_early": Fault(
        "Each row is asked for the token it has read.",
        "prompt_tokens",
        "with other tokens in the prompts",
        loss="""
        def compute_loss(self, model_output, batch, reducer):
            tokens = batch["tokens"].roll(1, -1)
            return super().compute_loss(model_output, {**batch, "tokens": tokens}, reducer)
        """,
    ),
    "last_token_left_out": Fault(
        "The last token of each response is not trained.",
        "last_token",
        "changes no gradient there",
        loss="""
        def per_token(self, log_probs, batch):
            kept = torch.cat([
                torch.arange(len(mask)) != max([*mask.nonzero().flatten().tolist(), 0])
                for mask in batch["loss_masks"]
            ])
            return super().per_token(log_probs, batch) * kept
        """,
    ),
    "temperature_of_one": Fault(
        "The policy is scored at temperature 1, whatever it was sampled at.",
        "temperature",
        "at temperature 0.5, with the output scaled by it",
        loss="""
        def response_log_probs(self, model_output, batch):
            return super().response_log_probs(model_output, batch, temperature=1.0)
        """,
    ),
    "stage_changes_rewards_in_place": Fault(
        "The stage shifts the list of rewards that all roles share.",
        "stage_inputs",
        "changes the batch key 'rewards' in place",
        stage="""
        def stage(batch, args):
            for position in range(len(batch["rewards"])):
                batch["rewards"][position] += 0.5
            return sound.group_advantages(batch, args)
        """,
    ),
    "stage_changes_masks_in_place": Fault(
        "The stage clears the end of the masks that all roles share.",
        "stage_inputs",
        "changes the batch key 'loss_masks' in place",
        stage="""
        def stage(batch, args):
            for mask in batch["loss_masks"]:
                mask[3:] = 0
            return sound.group_advantages(batch, args)
        """,
    ),
    "siblings_vote_twice": Fault(
        "The mean of a group is that of its samples.",
        "siblings_in_stages",
        "with each rollout cut into two samples before the stages",
        stage="""
        def stage(batch, args):
            groups = {}
            for reward, group, mask in zip(batch["rewards"], batch["group_indices"], batch["loss_masks"]):
                if mask.any():
                    groups.setdefault(group, []).append(reward)
            batch["advantages"] = [
                torch.full((len(mask),), reward - sum(groups[group]) / len(groups[group]) if mask.any() else 0.0)
                for reward, group, mask in zip(batch["rewards"], batch["group_indices"], batch["loss_masks"])
            ]
            return {}
        """,
    ),
    "loss_sets_a_seed": Fault(
        "The loss seeds torch.",
        "random_state",
        "the loss changes the state of the global generator of torch",
        loss="""
        def per_token(self, log_probs, batch):
            torch.manual_seed(0)
            return super().per_token(log_probs, batch)
        """,
    ),
    "stage_sets_a_seed": Fault(
        "The stage seeds Python's generator.",
        "random_state",
        "the stages change the state of the global generator of Python's random",
        stage="""
        def stage(batch, args):
            import random
            random.seed(0)
            return sound.group_advantages(batch, args)
        """,
    ),
    "clipped_branch_alone": Fault(
        "The clipped ratio stands on both sides.",
        "clip_side",
        "with ratio 0.5 and advantage 1, sample 0 is not trained",
        loss="""
        def per_token(self, log_probs, batch):
            ratio = self.ratio(log_probs, batch)
            return -ratio.clamp(0.8, 1.2) * self.advantages(log_probs, batch)
        """,
    ),
    "smaller_of_the_branches": Fault(
        "The surrogate is optimistic.",
        "clip_side",
        "with ratio 0.5 and advantage 1, sample 0 is not trained",
        loss="""
        def per_token(self, log_probs, batch):
            ratio, advantages = self.ratio(log_probs, batch), self.advantages(log_probs, batch)
            return torch.minimum(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
        """,
    ),
}

SHRUNK = ("mask_ignored", "mean_of_micro_batch_means", "whitening_per_micro_batch", "nan_from_exp")
"""Faults that one or two samples show."""


def install(folder: Path, distribution: str, module: str, source: str) -> None:
    """Lay out a distribution as an installer would."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stacx.recipes]\n{distribution} = {module}\n")
    (folder / f"{module}.py").write_text(source)


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory, sound_source: str, make_source: Callable[..., str]
) -> tuple[int, dict[str, Any]]:
    """Exit code and document of one `stacx check --all` over the plugins and a sound one."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sound.py").write_text(sound_source)
    install(folder, "sound-plugin", "planted_sound", make_source("sound", "planted_sound", "No fault."))
    for name, fault in FAULTS.items():
        module = f"planted_{name}"
        install(folder, f"planted-{name}", module, make_source(name, module, fault.about, fault.loss, fault.stage))
    plugins = ",".join(["sound-plugin", *(f"planted-{name}" for name in FAULTS)])
    root = Path(stacx_core.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "stacx_core", "check", "--all", "--json", "--plugins", plugins],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("STACX_")},
            "PYTHONPATH": os.pathsep.join([str(folder), str(root)]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failures(report: tuple[int, dict[str, Any]], recipe: str) -> dict[str, dict[str, Any]]:
    """Check -> result of what failed for a recipe."""
    (page,) = (page for page in report[1]["recipes"] if page["name"] == recipe)
    return {result["check"]: result for result in page["results"] if result["status"] == "fail"}


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_check_names_the_fault(report: tuple[int, dict[str, Any]], name: str) -> None:
    failed = failures(report, name)
    assert FAULTS[name].check in failed, failed
    result = failed[FAULTS[name].check]
    assert FAULTS[name].says in result["reason"]
    assert result["where"].startswith("role 'policy', arguments: the defaults")


@pytest.mark.parametrize("name", SHRUNK)
def test_the_smallest_input_is_small(report: tuple[int, dict[str, Any]], name: str) -> None:
    smallest = failures(report, name)[FAULTS[name].check]["smallest"]
    assert 1 <= len(smallest) <= 2
    assert sum(sample["response_length"] for sample in smallest) <= 4


def test_the_sound_plugin_and_the_hosts_recipe_pass(report: tuple[int, dict[str, Any]]) -> None:
    assert failures(report, "sound") == {}
    assert failures(report, "sft") == {}


def test_a_failure_is_the_exit_code_of_a_failed_run(report: tuple[int, dict[str, Any]]) -> None:
    assert report[0] == 1
    assert report[1]["passed"] is False
