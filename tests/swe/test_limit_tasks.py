"""The tasks, the expert and the student of ``benchmarks/bug_fixing.py``."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from stacx_core.rollout.collecting import teacher_only
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episode_runner import EpisodeRunner
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.loading import load_teacher
from stacx_core.swe.agent.actions import bash_block
from stacx_core.swe.agent.bash_agent import BashAgent
from stacx_core.swe.agent.harbor import DEFAULTS, HarborTasks
from stacx_core.swe.oracle import try_out
from stacx_core.swe.sandboxes import SandboxPool
from stacx_core.swe.tasks import read_task, read_tasks

BY_TWOS, ONE_BY_ONE = "limits-0000", "limits-0001"
CHECK = bash_block("sh check.sh")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def family(monkeypatch):
    """The module of the tasks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("limit_tasks")


@pytest.fixture
def folder(family, tmp_path):
    """Six tasks to train on and two that are held out; every other one, from the first, is checked by twos."""
    family.write_tasks(tmp_path / "tasks", 6, 2)
    return tmp_path / "tasks"


@pytest.fixture
def expert(family, folder, host_args, speaker):
    """The expert of the folder."""
    args = host_args(environment=f"harbor:{folder}", hf_checkpoint=str(speaker))
    return family.LimitExpert(args, AutoTokenizer.from_pretrained(speaker))


@pytest.fixture
def play(provider, folder, expert):
    """Plays a task, with actions of others first and then the expert's; returns all steps and actions."""

    def run(name, *others):
        task = read_task(folder / name)
        agent = BashAgent(lambda _: task, SandboxPool(provider, 1, [task]), DEFAULTS)
        said = "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in agent.reset(0))
        steps, actions = [], []
        while not (steps and steps[-1].done) and len(steps) < 40:
            actions.append(others[len(steps)] if len(steps) < len(others) else expert.answer(said))
            steps.append(agent.step(actions[-1]))
            said += f"<|assistant|>{actions[-1]}<|end|><|user|>{steps[-1].observation}<|end|>"
        agent.close()
        return steps, actions

    return run


def functions(folder, task):
    """The function that is wrong in a task, and the others, the one that is tried with it first."""
    source = (folder / task / "environment" / "app" / "limits.sh").read_text()
    names, operators = zip(*re.findall(r"^(\w+)\(\).*(-l[et]) ", source, re.M), strict=True)
    at = operators.index("-lt")
    assert operators.count("-le") == 3
    return names[at], [names[at ^ other] for other in (1, 2, 3)]


def mend(name):
    return bash_block(f"sed -i /^{name}/s/-lt/-le/ limits.sh")


def test_the_oracle_solves_all_tasks_and_an_idle_agent_none(provider, folder):
    trials = try_out(read_tasks(folder), provider)
    assert [(trial.oracle, trial.empty) for trial in trials] == [(1.0, 0.0)] * 8


def test_no_name_of_a_held_out_task_is_trained_on(folder):
    def names(task):
        return set(re.findall(r"^(\w+)\(\)", (task.folder / "environment/app/limits.sh").read_text(), re.M))

    held_out = (folder / "held_out.txt").read_text().split()
    assert held_out == ["limits-0006", "limits-0007"]
    tasks = {task.name: names(task) for task in read_tasks(folder)}
    assert {len(found) for found in tasks.values()} == {4}
    unseen = set().union(*(tasks.pop(name) for name in held_out))
    assert not unseen & set().union(*tasks.values())


@pytest.mark.parametrize("task", [BY_TWOS, ONE_BY_ONE])
def test_the_expert_checks_mends_checks_and_submits(play, folder, task):
    wrong, _ = functions(folder, task)
    steps, actions = play(task)
    assert actions == [CHECK, mend(wrong), CHECK, bash_block("submit")]
    assert (steps[-1].reward, steps[-1].counts["solved"]) == (1.0, 1)


def test_a_check_by_twos_leaves_a_choice(play, folder):
    wrong, (other, *_) = functions(folder, BY_TWOS)
    steps, _ = play(BY_TWOS)
    assert {f"{wrong} or {other} is wrong", f"{other} or {wrong} is wrong"} & set(steps[0].observation.splitlines())
    steps, _ = play(ONE_BY_ONE)
    assert f"{functions(folder, ONE_BY_ONE)[0]} is wrong" in steps[0].observation.splitlines()


@pytest.mark.parametrize("task", [BY_TWOS, ONE_BY_ONE])
def test_the_expert_goes_on_from_a_wrong_choice(play, folder, task):
    wrong, (other, *_) = functions(folder, task)
    steps, actions = play(task, "I am lost.", CHECK, mend(other))
    asked = [bash_block("sh check.sh -v")] if task == BY_TWOS else []
    assert actions[3:] == [CHECK, *asked, mend(wrong), CHECK, bash_block("submit")]
    assert steps[-1].reward == 1.0


@pytest.mark.parametrize("task", [BY_TWOS, ONE_BY_ONE])
def test_the_expert_puts_right_what_others_broke_everywhere(play, task):
    steps, _ = play(task, bash_block("sed -i s/-le/-lt/ limits.sh"))
    assert steps[-1].reward == 1.0


def test_the_tests_see_what_the_check_does_not(play, folder):
    wrong, (other, *_) = functions(folder, BY_TWOS)
    too_much = bash_block(f"sed -i '/^{other}/s/test.*/true; }}/' limits.sh; sh check.sh")
    steps, _ = play(BY_TWOS, mend(wrong), too_much, bash_block("submit"))
    assert "ok" in steps[1].observation.splitlines()
    assert (steps[-1].reward, steps[-1].counts["unsolved"]) == (0.0, 1)


def test_the_student_can_read_and_say_all_of_an_episode(family, provider, folder, host_args, tmp_path):
    family.make_student(tmp_path / "student", folder, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "student")
    args = host_args(
        environment=f"harbor:{folder}", teacher="limit_tasks:LimitExpert", hf_checkpoint=str(tmp_path / "student")
    )
    tasks = read_tasks(folder)
    runner = EpisodeRunner(args, tokenizer, 1024, HarborTasks(tasks[:6], tasks[6:], provider, 2))
    teacher = load_teacher(args, tokenizer, scores=False)
    asked = [training_task(args, number, 0) for number in range(6)]
    for episode in runner.run(asked, None, teacher, teacher_only, SamplingParams(24), rollout=0):
        assert episode.reward == 1.0
        assert len(episode.turns) == 4
        (sample,) = episode.samples(0, 0)
        assert tokenizer.unk_token_id not in sample.tokens
        assert len(sample.tokens) < 256
