"""Runs an evaluation: what is missing of it is played, and what there is then is summed up."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from stacx_core.knobs import Args
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.swe.agent.bash_agent import AgentSettings
from stacx_core.swe.agent.harbor import HarborTasks, named_tasks
from stacx_core.swe.evaluation.endpoint import Endpoint
from stacx_core.swe.evaluation.journal import Journal
from stacx_core.swe.evaluation.players import CheckpointPlayer, EndpointPlayer, HarnessPlayer, Player
from stacx_core.swe.evaluation.summary import Summary, summarize
from stacx_core.swe.evaluation.trajectory import Trajectory
from stacx_core.swe.sandboxes import sandbox_provider
from stacx_core.swe.tasks import Task, read_tasks, tasks_fingerprint

SUMMARY, TASKS = "summary.json", "tasks.jsonl"
DECIDES = ("endpoint", "harness", "harness_timeout", "dtype", "apply_chat_template", "max_sequence_len", "max_turns",
           "seed", "sandbox", "eval_temperature", "eval_max_response_len", "rollout_top_p", "rollout_top_k",
           "command_timeout", "output_limit")  # fmt: skip
"""Knobs that the episodes depend on, besides tasks and model."""


def evaluate(
    args: Args,
    folder: Path,
    key: str | None,
    tell: Callable[[str], object],
    interrupts: AbstractContextManager[object],
) -> Summary:
    """Evaluate a checkpoint or an endpoint, and write episodes, results per task and a summary into a folder.

    Args:
        args: The knobs of ``stacx eval``.
        folder: New, or of an evaluation with the same settings, which is completed.
        key: Of the endpoint.
        tell: Gets a line for each episode that ends.
        interrupts: Entered while episodes are played: makes signals the exception that ends them tidily.

    Raises:
        ConfigError, DataError, ModelError: Tasks, model, sandbox or folder cannot be used.
        EngineError: The endpoint does not say which models it has.
    """
    tasks, make = _environments(args)
    endpoint = None if args.endpoint is None else Endpoint(args.endpoint, args.endpoint_model, key)
    journal = Journal(folder, _settings(args, tasks, endpoint))
    missing = [
        EpisodeTask(number, sample, 2 * number, task.name)
        for sample in range(args.samples)
        for number, task in enumerate(tasks)
        if not journal.has(task.name, sample)
    ]
    done = len(tasks) * args.samples - len(missing)
    played = _player(args, make, endpoint).play(missing) if missing else iter(())
    with interrupts:
        for trajectory in played:
            journal.add(trajectory)
            done += 1
            tell(f"{done}/{len(tasks) * args.samples}  {_line(trajectory)}")
    names = [task.name for task in tasks]
    summary = summarize(names, args.samples, journal.trajectories(names, args.samples))
    _write(folder / TASKS, "".join(json.dumps(task.record()) + "\n" for task in summary.tasks))
    _write(folder / SUMMARY, json.dumps(summary.record(), indent=1) + "\n")
    return summary


def _environments(args: Args) -> tuple[list[Task], HarborTasks]:
    tasks = read_tasks(args.tasks)
    if args.names is not None:
        tasks = named_tasks(tasks, Path(args.names))
    provider = sandbox_provider(args.sandbox)
    for task in tasks:
        provider.check(task)
    settings = AgentSettings(command_timeout=args.command_timeout, output=args.output_limit)
    return tasks, HarborTasks(tasks, [], provider, args.concurrency, settings, args.tasks)


def _player(args: Args, make: HarborTasks, endpoint: Endpoint | None) -> Player:
    params = SamplingParams(args.eval_max_response_len, args.eval_temperature, args.rollout_top_p, args.rollout_top_k)
    if endpoint is None:
        return CheckpointPlayer(args, make, params)
    if args.harness is not None:
        return HarnessPlayer(args, endpoint, make, params)
    return EndpointPlayer(endpoint, make, params, args.max_turns, args.seed)


def _settings(args: Args, tasks: list[Task], endpoint: Endpoint | None) -> dict[str, Any]:
    model: Mapping[str, Any] = (
        {"checkpoint": args.hf_checkpoint, "files": _files(Path(args.hf_checkpoint))}
        if endpoint is None
        else {"model": endpoint.model}
    )
    return {"tasks": tasks_fingerprint(tasks), **model, **{name: args.get(name) for name in DECIDES}}


def _files(checkpoint: Path) -> list[list[Any]]:
    """Name, size and time of change of the files of a checkpoint; none of one on a hub."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file()) if checkpoint.is_dir() else []
    return [[path.relative_to(checkpoint).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _line(trajectory: Trajectory) -> str:
    turns = len(trajectory.actions)
    text = f"{trajectory.task} #{trajectory.sample}: {trajectory.verdict}, {turns} turn{'s' * (turns != 1)}"
    return f"{text}\n  {trajectory.error}" if trajectory.error else text


def _write(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
