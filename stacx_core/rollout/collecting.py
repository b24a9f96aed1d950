"""Collecting the episodes of a teacher into a corpus."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from stacx_core.backends.model import context_length, load_tokenizer
from stacx_core.knobs import Args
from stacx_core.rollout.corpus import CorpusWriter, tokenizer_fingerprint
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.environments.loading import task_contents
from stacx_core.rollout.episodes import EpisodeTask, Executor
from stacx_core.rollout.playground import playground
from stacx_core.rollout.teachers.loading import load_teacher

DECIDES = (
    *("environment", "harness", "num_tasks", "max_turns", "prompt_data", "input_key", "label_key", "rollout_shuffle"),
    *("apply_chat_template", "max_sequence_len", "rm_type", "rm_load", "reward_key", "teacher", "teacher_load"),
    *("rollout_temperature", "rollout_top_p", "rollout_top_k", "rollout_max_response_len", "seed"),
)
"""Knobs that the episodes depend on."""


def teacher_only(task: EpisodeTask, turn: int) -> Executor:
    """The teacher plays by itself."""
    return "teacher"


def collect_episodes(
    args: Args, folder: Path, tell: Callable[[str], None], interrupts: AbstractContextManager[object]
) -> dict[str, Any]:
    """Play until the corpus in ``folder`` has ``num_episodes`` episodes; returns its manifest.

    An episode depends on the settings and its number alone, so that an interrupted collection goes on as if nothing
    had happened.

    Args:
        args: With ``num_episodes`` and ``episodes_per_shard``.
        folder: New, or of a corpus with the same settings.
        tell: Gets a line of progress for each shard.
        interrupts: Entered while episodes are played: makes signals the exception that ends them tidily.

    Raises:
        ConfigError, DataError, ModelError: Tasks, teacher or folder cannot be used.
        TeacherError: The teacher failed, under ``--teacher-failure raise`` or too often.
        EpisodeError: The environment failed every episode of a shard.
    """
    args = args.replace("stacx collect", n_samples_per_prompt=1)
    tokenizer = load_tokenizer(args.hf_checkpoint)
    ground = playground(args, tokenizer, context_length(args.hf_checkpoint))
    teacher = load_teacher(args, tokenizer, scores=False)
    params = SamplingParams(
        args.rollout_max_response_len, args.rollout_temperature, args.rollout_top_p, args.rollout_top_k
    )
    made_of = {"tasks": task_contents(args.environment), "tokenizer": tokenizer_fingerprint(tokenizer)}
    settings = {**{name: args.get(name) for name in DECIDES}, **made_of}
    corpus = CorpusWriter(folder, settings)
    taken: dict[int, int] = {}
    ground.tasks.episodes(args, corpus.done, taken)
    with interrupts:
        while corpus.done < args.num_episodes:
            count = min(args.episodes_per_shard, args.num_episodes - corpus.done)
            tasks = ground.tasks.episodes(args, count, taken)
            episodes = ground.runner.run(tasks, None, teacher, teacher_only, params, rollout=0)
            corpus.add(episodes)
            rewards = [episode.reward for episode in episodes if not episode.failed]
            mean = sum(rewards) / max(len(rewards), 1)
            tell(f"episodes {corpus.done}/{args.num_episodes}  reward {mean:.3f}  failed {count - len(rewards)}")
    return corpus.finish()
