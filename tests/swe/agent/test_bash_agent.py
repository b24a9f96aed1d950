"""Episodes in real sandboxes: commands, their limits, malformed answers, and how an episode ends."""

from __future__ import annotations

import dataclasses
import gc

import pytest

from stacx_core.errors import DataError, SandboxError, VerificationError
from stacx_core.swe.agent.actions import bash_block
from stacx_core.swe.agent.bash_agent import ENDINGS, EVENTS, AgentSettings
from stacx_core.swe.agent.harbor import DEFAULTS, HarborTasks

SUBMIT = bash_block("submit")


@pytest.fixture
def agent(provider, make_task):
    """Begins an episode of the small task."""
    begun = []

    def begin(settings=DEFAULTS, agent_timeout=30.0, **task):
        made = make_task(**task)
        limits = dataclasses.replace(made.limits, agent_timeout=agent_timeout)
        environment = HarborTasks([dataclasses.replace(made, limits=limits)], [], provider, 1, settings)()
        begun.append(environment)
        environment.reset(0)
        return environment

    yield begin
    for environment in begun:
        environment.close()


def happened(step):
    return {name: count for name, count in step.counts.items() if count}


def test_commands_run_and_files_stay(agent):
    environment = agent()
    step = environment.step("I look.\n" + bash_block("pwd; cat score.txt"))
    assert (step.observation, step.reward, step.done) == ("exit code: 0\n<output>\n/app\n0\n</output>", 0.0, False)
    assert set(step.counts) == {*ENDINGS, *EVENTS}
    environment.step(bash_block("echo 1 > score.txt; cd /tmp"))
    assert "\n/app\n1\n" in environment.step(bash_block("pwd; cat score.txt")).observation
    step = environment.step(SUBMIT)
    assert (step.reward, step.done, happened(step)) == (1.0, True, {"solved": 1})


@pytest.mark.parametrize(("score", "reward"), [("0", 0.0), ("0.5", 0.5), ("-1", -1.0)])
def test_less_than_the_full_reward_is_unsolved(agent, score, reward):
    environment = agent()
    environment.step(bash_block(f"echo {score} > score.txt"))
    step = environment.step(SUBMIT)
    assert (step.reward, happened(step)) == (reward, {"unsolved": 1})


def test_only_the_block_itself_submits(agent):
    environment = agent()
    for command in ("echo submit", "submit; true", "cat << E\nsubmit\nE"):
        assert not environment.step(bash_block(command)).done
    assert not environment.step("submit").done


def test_malformed_answers_in_a_row_end_the_episode(agent):
    environment = agent()
    assert happened(environment.step("ls")) == {"malformed_actions": 1}
    assert "1 more such answer in" in environment.step(SUBMIT + "\n" + SUBMIT).observation
    environment = agent()
    steps = [environment.step(action) for action in ("ls", "ls", bash_block("ls"), "ls", "ls", "ls")]
    assert [step.done for step in steps] == [False] * 5 + [True]
    assert happened(steps[-1]) == {"malformed": 1, "malformed_actions": 1}
    assert sum(step.reward for step in steps) == 0


def test_a_command_has_its_time_and_the_agent_its_own(agent):
    environment = agent(AgentSettings(command_timeout=0.5), agent_timeout=100)
    step = environment.step(bash_block("sleep 600"))
    assert step.observation.startswith("exit code: 137 (ended after 0.5 seconds")
    assert (step.done, happened(step)) == (False, {"command_timeouts": 1})
    environment = agent(AgentSettings(command_timeout=100), agent_timeout=0.5, name="other")
    step = environment.step(bash_block("sleep 600"))
    assert (step.done, step.reward, happened(step)) == (True, 0.0, {"agent_timeout": 1, "command_timeouts": 1})


def test_output_is_bounded(agent):
    environment = agent(AgentSettings(output=100))
    observation = environment.step(bash_block("seq 100000")).observation
    assert "\n1\n2\n3\n" in observation
    assert observation.endswith("99999\n100000\n</output>")
    assert len(observation) < 200


def test_work_that_makes_the_tests_hang_earns_0(agent):
    environment = agent(test="while [ -e forever ]; do sleep 1; done; echo 1 > /logs/verifier/reward.txt", verifier=0.5)
    environment.step(bash_block("touch forever"))
    step = environment.step(SUBMIT)
    assert (step.done, step.reward, happened(step)) == (True, 0.0, {"unsolved": 1, "tests_over_limit": 1})


def test_tests_without_a_reward_and_a_lost_sandbox_are_errors_and_no_rewards(agent):
    with pytest.raises(VerificationError, match="cannot be read"):
        agent(test="true").step(SUBMIT)
    environment = agent(name="other")
    environment._sandbox.close()
    with pytest.raises(SandboxError):
        environment.step(bash_block("ls"))


def test_the_conversation_begins_with_the_system_or_not(provider, make_task):
    task = make_task()
    for system in (True, False):
        environment = HarborTasks([task], [], provider, 1, AgentSettings(system=system))()
        first = environment.reset(0)
        environment.close()
        if system:
            assert [message["role"] for message in first] == ["system", "user"]
            assert first[1]["content"].startswith("Task: sum\n")
        else:
            assert first.startswith("You are a software engineer.")
            assert "\n\nTask: sum\n" in first
    assert "Write 1 into score.txt." in environment.render()


def test_an_environment_that_is_given_up_lets_go_of_its_place(provider, make_task):
    """With one place, the second episode could not begin while the first holds it."""
    tasks = HarborTasks([make_task()], [], provider, 1)
    environment = tasks()
    environment.reset(0)
    del environment
    gc.collect()
    environment = tasks()
    assert environment.reset(0)
    environment.close()


def test_seeds_choose_tasks(provider, make_task):
    training, held_out = [make_task("a"), make_task("b")], [make_task("c")]
    tasks = HarborTasks(training, held_out, provider, 2, name="here")
    assert [tasks.task(seed).name for seed in range(6)] == ["a", "c", "b", "c", "a", "c"]
    assert (tasks.at_once, tasks.longest_call) == (2, 660.0)
    with pytest.raises(DataError, match="here has no held-out tasks"):
        HarborTasks(training, [], provider, 1, name="here").task(1)
