"""mini-swe-agent as it is installed, by its own command, against the gateway."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway_parts import TASK, Scripted
from stacx_core.rollout.teachers.scripted import ScriptedTeacher
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.sessions import Session

PYTHON = os.environ.get("MINI_SWE_PYTHON", "")

pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason="set MINI_SWE_PYTHON to a Python that has the package mini-swe-agent, in an environment of its own",
)

SECONDS = 240
"""After which the command is killed."""


def call(command: str) -> str:
    written = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"I do what is needed.\n<tool_call>\n{written}\n</tool_call>"


def solve(conversation: str) -> str:
    """One command, and once its output was seen, the submission."""
    if "fixed it" in conversation.rpartition("Please solve")[2]:
        return call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    return call("printf 'x = 1\\n' > app.py && echo fixed it")


def mini(gateway: Gateway, session: Session, folder: Path) -> dict[str, Any]:
    """Run `mini` in a folder to its end; returns the trajectory that it wrote."""
    home = folder / "home"
    work = folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    own = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
    given = {"OPENAI_API_KEY": gateway.key, "OPENAI_BASE_URL": session.base_url, "MSWEA_GLOBAL_CONFIG_DIR": str(home)}
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    written = folder / "trajectory.json"
    command = [PYTHON, "-m", "minisweagent.run.mini", "--model", "openai/policy", "--yolo", "--exit-immediately"]
    command += ["--task", "Give x the value 1.", "--output", str(written), "--cost-limit", "0"]
    environment = {**clean, **own, **given, "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(written.read_text())


def test_its_run_becomes_one_sample_of_the_ids_that_were_returned(serve: Any, tokenizer: Any, tmp_path: Path) -> None:
    engine = Scripted(solve, tokenizer)
    gateway = serve(engine, max_new_tokens=400, limit=20_000)
    session = gateway.open(TASK)
    trajectory = mini(gateway, session, tmp_path)
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert (tmp_path / "work" / "app.py").read_text() == "x = 1\n"
    (sample,) = gateway.finish(session, reward=1.0).samples(0, 0)
    sample.validate()
    trained = [i for i, mask in zip(sample.tokens[sample.prompt_length :], sample.mask, strict=True) if mask]
    assert trained == [i for _, answer in engine.said for i in answer.ids]
    assert len(engine.said) == 2
    assert sample.response == f"{solve('')}\n{solve('Please solve fixed it')}"
    assert session.counts["malformed_tool_calls"] == session.counts["refused"] == 0
    seen = tokenizer.decode(sample.tokens)
    assert seen.count("fixed it") == 2, "in the command, and in what the tool gave back"


def test_it_cannot_tell_a_teacher_from_the_student(serve: Any, tokenizer: Any, tmp_path: Path) -> None:
    """The student begins; the scripted expert sees the tool's output only, and ends the run."""

    def end(observation: str) -> str:
        assert "fixed it" in observation
        return solve("Please solve fixed it")

    expert = ScriptedTeacher(end, tokenizer, "auto")
    engine = Scripted(solve, tokenizer)
    gateway = serve(
        engine, expert, lambda task, turn: "teacher" if turn else "student", max_new_tokens=400, limit=20_000
    )
    session = gateway.open(TASK)
    assert mini(gateway, session, tmp_path)["info"]["exit_status"] == "Submitted"
    episode = gateway.finish(session, reward=1.0)
    assert [turn.executor for turn in episode.turns] == ["student", "teacher"]
    assert episode.turns[1].text == solve("Please solve fixed it")
    assert len(engine.said) == 1
