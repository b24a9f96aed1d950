"""mini-swe-agent as it is installed, by ``--harness mini-swe``, on examples that an expert solves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import Scripted
from stacx_core.data.sample import ENVIRONMENT, STUDENT, TEACHER
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.playing import student_only
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.loading import load_teacher
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.evaluation.journal import read_episodes
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.settings import GatewaySettings
from stacx_core.swe.harness.commands import load_harness
from stacx_core.swe.harness.expert import SUBMIT, MiniSweExpert, next_call
from stacx_core.swe.harness.runner import HarnessRunner
from stacx_core.swe.tasks import read_tasks

EXAMPLES = Path(__file__).parents[3] / "examples" / "swe_tasks"
LOOK = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "pwd; id -un"}}\n</tool_call>'
EXPERT = f"{MiniSweExpert.__module__}:MiniSweExpert"
PYTHON = os.environ.get("MINI_SWE_PYTHON", "")

pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason="set MINI_SWE_PYTHON to a Python that has the package mini-swe-agent, in an environment of its own",
)


class Remembered:
    """A teacher that keeps its actions."""

    def __init__(self, teacher: Any) -> None:
        self.teacher = teacher
        self.ids: list[list[int]] = []

    def act(self, turns: Any, params: Any) -> Any:
        actions = self.teacher.act(turns, params)
        self.ids += [action.ids for action in actions]
        return actions


@pytest.fixture
def mini(provider: Any, host_args: Any, tokenizer: Any, talker: Path) -> Any:
    """Its runner on the examples, by given arguments, and those with the others."""

    def make(limit: int = 65_536, **given: Any) -> Any:
        given |= {"environment": f"harbor:{EXAMPLES}", "teacher": EXPERT}
        args = host_args(harness=f"mini-swe:{Path(PYTHON).parent / 'mini'}", hf_checkpoint=str(talker), **given)
        tasks = HarborTasks(read_tasks(EXAMPLES), [], provider, 2)
        return args, HarnessRunner(args, tokenizer, limit, load_harness(args.harness), tasks)

    return make


@pytest.mark.parametrize(
    ("given", "outcome", "turns"),
    [({"max_turns": 1}, "turn_limit", 1), ({"limit": 9_000}, "context_overflow", 1)],
)
def test_it_ends_where_the_model_says_no_more(mini: Any, tokenizer: Any, given: Any, outcome: str, turns: int) -> None:
    args, runner = mini(**given)
    engine = Scripted(lambda said: LOOK.replace("id -un", "seq 2000"), tokenizer)
    (episode,) = runner.run([training_task(args, 0, 0)], engine, None, student_only, SamplingParams(4096), 0)
    assert (episode.outcome, len(episode.turns), episode.reward) == (outcome, turns, 0.0)
    assert (episode.counts["harness_crashed"], episode.counts["unsolved"]) == (0, 1)


def test_it_solves_all_examples_and_what_was_recorded_is_what_was_answered(mini: Any, tokenizer: Any) -> None:
    """The student looks around first, the expert does the rest: mini-swe-agent cannot tell who answered."""
    args, runner = mini()
    engine, expert = Scripted(lambda said: LOOK, tokenizer), Remembered(load_teacher(args, tokenizer, scores=False))
    tasks = [training_task(args, number, 0) for number in range(20)]
    episodes = runner.run(
        tasks, engine, expert, lambda task, turn: "teacher" if turn else "student", SamplingParams(4096), 0
    )
    assert [(e.outcome, e.reward, e.counts["solved"], e.error) for e in episodes] == [("done", 1.0, 1, "")] * 20
    students, teachers = [], []
    for episode in episodes:
        (sample,) = episode.samples(0, 0)
        sample.validate()
        behind = sample.tokens[sample.prompt_length :]
        assert {(who, m) for who, m in zip(sample.executor or (), sample.mask, strict=True)} == {
            (ENVIRONMENT, 0),
            (STUDENT, 1),
            (TEACHER, 1),
        }
        trained = [i for i, mask in zip(behind, sample.mask, strict=True) if mask]
        assert trained == [i for turn in episode.turns for i in turn.ids]
        students += [turn.ids for turn in episode.turns if turn.executor == "student"]
        teachers += [turn.ids for turn in episode.turns if turn.executor == "teacher"]
        assert '"output": "/app\\nagent\\n"' in episode.turns[1].observation
        assert episode.counts["malformed_tool_calls"] == episode.counts["refused"] == 0
    assert sorted(students) == sorted(said.ids for _, said in engine.said)
    assert sorted(teachers) == sorted(expert.ids)


def test_dagger_labels_every_state_of_its_runs(
    stacx: Any, provider: Any, talker: Path, tokenizer: Any, metrics: Any, label_files: Any, tmp_path: Path
) -> None:
    """A student that talks nonsense and the expert share the driving; each state has what the expert would do next."""
    given = ["--environment", f"harbor:{EXAMPLES}", "--num-tasks", "2", "--max-turns", "8", "--hf-checkpoint", talker]
    given += ["--harness", f"mini-swe:{Path(PYTHON).parent / 'mini'}", "--teacher", EXPERT, "--num-rollout", "1"]
    given += ["--rollout-batch-size", "2", "--rollout-max-response-len", "16", "--lr", "1e-3"]
    given += ["--dagger-beta-start", "0.6", "--dagger-replay", "1", "--output-dir", tmp_path / "run"]
    done = stacx("train", "--algorithm", "online_dagger", *given)
    assert done.code == 0, done.err
    (record,) = [json.loads(line) for line in (tmp_path / "run/roll_in.jsonl").read_text().splitlines()]
    (line,) = metrics(tmp_path / "run")
    assert record["labels"] == record["turns"] > record["teacher_turns"] > 0
    assert line["rollout/outcome_mixed"] == 2
    tasks = read_tasks(EXAMPLES)
    for episode in label_files(tmp_path / "run")[0]:
        for label in episode:
            said = tokenizer.decode(label["tokens"][: -label["response_length"]])
            (task,) = [task for task in tasks if task.instruction.strip() in said]
            assert label["response"] == next_call(task, said)


def test_it_is_evaluated_with_a_model_elsewhere(
    stacx: Any, provider: Any, talker: Path, tokenizer: Any, host_args: Any, tmp_path: Path
) -> None:
    """The model is the expert behind a gateway, which knows nothing of mini-swe-agent's sessions."""
    args = host_args(environment=f"harbor:{EXAMPLES}", teacher=EXPERT, hf_checkpoint=str(talker))
    expert = load_teacher(args, tokenizer, scores=False)
    settings = GatewaySettings("expert", SamplingParams(4096), 65_536)
    (tmp_path / "names").write_text("\n".join(task.name for task in read_tasks(EXAMPLES)[:3]))
    with Gateway(settings, tokenizer, None, expert, lambda task, turn: "teacher") as gateway:
        session = gateway.open(training_task(args, 0, 0))
        given = ["--endpoint", session.base_url, "--harness", f"mini-swe:{Path(PYTHON).parent / 'mini'}"]
        given += ["--names", tmp_path / "names", "--output-dir", tmp_path / "eval", "--json"]
        done = stacx("eval", EXAMPLES, *given, OPENAI_API_KEY=gateway.key)
    assert done.code == 0, done.err
    assert json.loads(done.out)["solved"] == 3
    for episode in read_episodes(tmp_path / "eval/episodes.jsonl"):
        assert "<tool_call>" in episode.actions[0].text
        assert SUBMIT in episode.actions[-1].text
        assert len(episode.parts) == 1 + 2 * len(episode.actions)
        assert not any(part.branch for part in episode.parts)
