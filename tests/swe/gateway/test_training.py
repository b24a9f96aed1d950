"""What was recorded is what the trainer computes, and GRPO trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gateway_parts import BASH, Policy
from stacx_core.config import resolve_object
from stacx_core.data.batch import samples_to_batch
from stacx_core.data.sample import Sample
from stacx_core.plugins import plugin_host
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.rollout.episode_rollout import grouped_samples
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.trainer.language_worker import LanguageWorker
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.offload import Turns


@pytest.fixture
def learner(chat_checkpoint: Path, host_args: Any) -> LocalLearner:
    """Of GRPO, on a model of its own."""
    plugin_host()
    config = TRAINING_CONFIGS["grpo"]
    (role,) = [role for role in config.roles if role.sync_to_rollout]
    own = {knob.name: knob.default for knob in config.knobs}
    given = {
        "global_batch_size": 4,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "num_steps_per_rollout": 1,
        "lr": 1e-3,
    }
    args = host_args(**{**own, **config.defaults, **given, "rollout_max_response_len": 24})
    loss = resolve_object(role.specialization_cls)(args)
    worker = LanguageWorker.load(role, loss, str(chat_checkpoint), torch.float32, args)
    return LocalLearner(config, args, {role.name: worker}, None, (), (), 1, Turns(False))


def said(gateway: Any, session: Any, chat: Any, messages: list[Any], **fields: Any) -> Any:
    return chat(gateway, session, messages, **fields).json["choices"][0]["message"]


def recorded(gateway: Any, chat: Any) -> list[Sample]:
    """Two runs at each of two tasks: two turns, and a third with the first message rewritten or by a second agent."""
    episodes = []
    for task in range(2):
        for number in range(2):
            session = gateway.open(EpisodeTask(task, number, task, f"fix/{task}"))
            first = {"role": "user", "content": f"task {task}"}
            one = said(gateway, session, chat, [first], tools=[BASH])
            more = {"role": "user", "content": "more"}
            said(gateway, session, chat, [first, one, more], tools=[BASH])
            other = [{"role": "user", "content": "short"}, one, more] if number else [first, one, first]
            said(gateway, session, chat, other, tools=[BASH])
            episodes.append(gateway.finish(session, reward=float(number)))
    return [sample for group in grouped_samples(episodes, 2, 0, 0) for sample in group]


def test_the_trainer_says_of_the_recorded_ids_what_the_engine_said(
    serve: Any, chat: Any, chat_checkpoint: Path, learner: LocalLearner
) -> None:
    for sample in recorded(serve(Policy(chat_checkpoint)), chat):
        pairs = zip(learner.policy_log_probs(sample), sample.rollout_log_probs or [], sample.mask, strict=True)
        trainers, engines = zip(*[(own, theirs) for own, theirs, mask in pairs if mask], strict=True)
        assert trainers == pytest.approx(engines, abs=1e-4)


def test_grpo_takes_a_step_on_them(serve: Any, chat: Any, chat_checkpoint: Path, learner: LocalLearner) -> None:
    samples = recorded(serve(Policy(chat_checkpoint)), chat)
    assert len(samples) == 8
    assert len({sample.rollout_id for sample in samples}) == 4
    batch, counts = samples_to_batch(samples, mask_truncated=False, reward_key=None)
    assert counts["loss_tokens"] == sum(sum(sample.mask) for sample in samples)
    before = [parameter.clone() for parameter in learner.policy_model().parameters()]
    metrics = learner.update(batch, 0)
    assert (metrics["skipped_step"], metrics["updates"]) == (0.0, 1.0)
    assert metrics["grad_norm"] > 0
    after = learner.policy_model().parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
