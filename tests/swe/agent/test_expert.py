"""The expert through the runner of episodes, on the twenty examples and beside students."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from stacx_core.data.sample import ENVIRONMENT, TEACHER
from stacx_core.errors import ConfigError, TeacherError
from stacx_core.rollout.collecting import teacher_only
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episode_metrics import episode_metrics
from stacx_core.rollout.episode_runner import EpisodeRunner
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.loading import load_teacher
from stacx_core.swe.agent.actions import bash_block, command_of
from stacx_core.swe.agent.expert import next_action, solution_steps, task_in
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.tasks import read_tasks

EXAMPLES = Path(__file__).parents[3] / "examples" / "swe_tasks"
EXPERT = "stacx_core.swe.agent.expert:SolutionExpert"
PARAMS = SamplingParams(2048)
IDLERS = """
def submits(observation):
    return "```bash\\nsubmit\\n```"
"""


@pytest.fixture
def play(provider, host_args, speaker, tmp_path, monkeypatch):
    """Plays one episode of each example with a teacher that acts alone, six at a time."""
    (tmp_path / "idlers.py").write_text(IDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(speaker)

    def run(teacher, **given):
        args = host_args(environment=f"harbor:{EXAMPLES}", teacher=teacher, hf_checkpoint=str(speaker), **given)
        make = HarborTasks(read_tasks(EXAMPLES), [], provider, 6)
        runner = EpisodeRunner(args, tokenizer, 32768, make)
        tasks = [training_task(args, number, 0) for number in range(20)]
        actor = load_teacher(args, tokenizer, scores=False)
        return runner.run(tasks, None, actor, teacher_only, PARAMS, rollout=0)

    return run


def test_the_expert_solves_all_examples(play):
    episodes = play(EXPERT)
    assert [episode.task_id for episode in episodes if episode.reward != 1.0] == []
    assert {len(episode.turns) for episode in episodes} == {4}
    metrics = episode_metrics(episodes)
    assert (metrics["success_rate"], metrics["count_solved"], metrics["outcome_done"]) == (1.0, 20.0, 20.0)
    assert sum(value for name, value in metrics.items() if name.startswith("count_")) == 20.0
    for episode in episodes:
        (sample,) = episode.samples(0, 0)
        assert sample.executor is not None
        written = {(who, trained) for who, trained in zip(sample.executor, sample.mask, strict=True)}
        assert written == {(ENVIRONMENT, 0), (TEACHER, 1)}


def test_an_agent_that_does_nothing_solves_none(play):
    episodes = play("idlers:submits")
    assert {(episode.outcome, episode.reward, len(episode.turns)) for episode in episodes} == {("done", 0.0, 1)}
    assert episode_metrics(episodes)["count_unsolved"] == 20.0


def test_the_turn_limit_leaves_no_reward(play):
    episodes = play(EXPERT, max_turns=3)
    assert {(episode.outcome, episode.reward, len(episode.turns)) for episode in episodes} == {("turn_limit", 0.0, 3)}


def test_the_expert_does_what_is_left_to_do(make_task):
    task = make_task()
    said = "Task: sum\n"
    commands = []
    while len(commands) < 9 and commands[-1:] != ["submit"]:
        action = next_action(task, said)
        commands.append(command_of(action))
        said += action + "whatever the student says" + bash_block("ls")
    assert commands == [command for _, command in solution_steps(task)] + ["submit"]
    assert commands[1].splitlines()[-1] == "bash /tmp/solution/solve.sh"


def test_the_expert_writes_any_text_file(make_task, sandbox):
    task = make_task()
    odd = "EOF\nEOF_\n```\n$HOME `id` \\n é"
    (task.solution / "a folder").mkdir()
    (task.solution / "a folder" / "it's.txt").write_text(odd)
    sandbox.run(command_of(next_action(task, solution_steps(task)[0][1])), 20)
    assert sandbox.read("/tmp/solution/a folder/it's.txt").decode() == f"{odd}\n"
    assert sandbox.read("score.txt") == b"1\n"


def test_what_the_expert_cannot_do_is_an_error(make_task, host_args, speaker):
    task = make_task("x")
    assert task_in("<|user|>Task: x\n\nMend it", {"x": task}) is task
    with pytest.raises(TeacherError, match="no task that the expert knows"):
        task_in("Task: y\n", {"x": task})
    (task.solution / "data.bin").write_bytes(b"\xff")
    with pytest.raises(TeacherError, match="not UTF-8"):
        next_action(task, "")
    (task.solution / "solve.sh").unlink()
    with pytest.raises(TeacherError, match=r"has no solution/solve\.sh"):
        next_action(task, "")
    with pytest.raises(ConfigError, match="not of 'textarena:x'"):
        load_teacher(host_args(environment="textarena:x", teacher=EXPERT), None, scores=False)
