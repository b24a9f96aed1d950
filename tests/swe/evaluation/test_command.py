"""``stacx eval`` and ``stacx show-trajectory`` as they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stacx_core.swe.evaluation.journal import read_episodes
from stacx_core.swe.tasks import read_tasks


@pytest.fixture
def folder(provider, make_task, tmp_path):
    """Three tasks, of which the expert cannot solve the last: its tests give no reward."""
    for name in ("a", "b"):
        make_task(f"tasks/{name}")
    make_task("tasks/c", test="exit 3")
    return tmp_path / "tasks"


@pytest.fixture
def evaluate(stacx, folder, tmp_path):
    """Runs ``stacx eval`` on the tasks, two at a time."""

    def run(*arguments, output="eval"):
        return stacx("eval", folder, "--output-dir", tmp_path / output, "--concurrency", "2", *arguments)

    return run


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_endpoint_is_evaluated_and_errors_are_played_again(evaluate, server, expert, folder, tmp_path):
    server.answer = expert(read_tasks(folder))
    options = ("--endpoint", server.url, "--samples", "2", "--eval-temperature", "0.5")
    done = evaluate(*options)
    assert done.code == 1, done.err
    assert "pass@1  1.000 [0.342, 1.000] of 2 tasks" in done.out
    assert "2 episodes ended by errors that say nothing about the model" in done.out
    assert "6/6" in done.err
    summary = json.loads((tmp_path / "eval/summary.json").read_text())
    assert (summary["complete"], summary["solved"], summary["evaluated"]) == (False, 4, 4)
    assert summary["verdicts"] == {"VerificationError": 2, "solved": 4}
    assert [(t["task"], t["evaluated"]) for t in lines(tmp_path / "eval/tasks.jsonl")] == [("a", 2), ("b", 2), ("c", 0)]
    seeds = {(json.dumps(body["messages"]), body["seed"]) for path, _, body in server.asked if body}
    assert len(seeds) == 3 * 2 * 3
    before = len(server.asked)
    assert evaluate(*options).code == 1
    assert len(server.asked) == before + 1 + 2 * 3  # the model's name, and the two episodes of c
    assert len(read_episodes(tmp_path / "eval/episodes.jsonl")) == 8


def test_an_evaluation_grows_and_is_not_mixed_with_another(evaluate, server, expert, folder, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("b\na\n")
    server.answer = expert(read_tasks(folder))
    options = ("--endpoint", server.url, "--names", names, "--eval-temperature", "0.5")
    first = evaluate(*options, "--json")
    assert (first.code, json.loads(first.out)["evaluated"]) == (0, 2)
    more = evaluate(*options, "--samples", "3")
    assert more.code == 0, more.err
    assert "pass@2  1.000" in more.out
    assert more.err.count("\n") == 4
    again = evaluate(*options, "--samples", "3")
    assert (again.code, again.err) == (0, "")
    other = evaluate(*options, "--max-turns", "2")
    assert (other.code, "max_turns was 32 and is 2" in other.err) == (2, True)
    (folder / "a/instruction.md").write_text("Something else.")
    assert "tasks was" in evaluate(*options).err


def test_a_killed_evaluation_goes_on(evaluate, server, expert, folder, tmp_path, eventually):
    """The process is killed when one episode has been written down and another is under way."""
    options = ["--endpoint", server.url, "--names", str(tmp_path / "names.txt"), "--concurrency", "1"]
    (tmp_path / "names.txt").write_text("a\nb\n")
    answer = expert(read_tasks(folder))
    program = [sys.executable, "-m", "stacx_core", "eval", str(folder), "--output-dir", str(tmp_path / "eval")]
    written = tmp_path / "eval/episodes.jsonl"
    process = subprocess.Popen([*program, *options], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kills(messages):
        if len(server.asked) == 6:
            eventually(lambda: written.exists() and written.read_bytes().endswith(b"\n"))
            process.kill()
            process.wait(60)
        return answer(messages)

    server.answer = kills
    assert process.wait(60) == -9
    (kept,) = read_episodes(tmp_path / "eval/episodes.jsonl")
    assert (kept.task, kept.solved) == ("a", True)
    done = evaluate(*options)
    assert (done.code, done.err.count("2/2  b #0: solved")) == (0, 1)


def test_outcomes_of_the_agent_are_failures(evaluate, server, folder, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("a\n")
    said = {"malformed": "ls", "turn_limit": "```bash\nls\n```", "unsolved": "```bash\nsubmit\n```"}
    for verdict, text in said.items():
        server.answer = lambda messages, text=text: text
        done = evaluate("--endpoint", server.url, "--names", names, "--max-turns", "4", output=verdict)
        assert (done.code, f"{verdict}" in done.out, "pass@1  0.000" in done.out) == (0, True, True), done.err
    full = (400, "the maximum context length is 5 tokens")
    server.refusals = [full, (200, '{"data": [{"id": "m"}]}')]
    done = evaluate("--endpoint", server.url, "--names", names, "--max-turns", "4", output="full")
    assert (done.code, "context_overflow" in done.out) == (0, True)
    server.refusals = [(401, "who are you?"), (200, '{"data": [{"id": "m"}]}')]
    done = evaluate("--endpoint", server.url, "--names", names, "--max-turns", "4", output="away")
    assert (done.code, "endpoint_failed" in done.out, "who are you?" in done.err) == (1, True, True)


def test_a_checkpoint_is_evaluated_on_the_embedded_engine(evaluate, speaker, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    options = ("--hf-checkpoint", speaker, "--names", names, "--max-turns", "2", "--eval-max-response-len", "5")
    done = evaluate(*options)
    assert done.code == 0, done.err
    episodes = read_episodes(tmp_path / "eval/episodes.jsonl")
    assert {(e.outcome, e.reward, len(e.actions)) for e in episodes} == {("turn_limit", 0.0, 2)}
    for episode in episodes:
        system, *parts = episode.parts
        assert system.text.startswith("You are a software engineer.")
        assert all(part.tokens and part.mask == (part.who == "student") for part in parts)
    assert episodes[0].counts == {"malformed_actions": 2}
    assert evaluate(*options, output="eval").err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --hf-checkpoint or --endpoint"),
        (("--hf-checkpoint", "x", "--endpoint", "http://x"), "either --hf-checkpoint or --endpoint"),
        (("--hf-checkpoint", "x", "--endpoint-model", "m"), "--endpoint-model names a model of --endpoint"),
        (("--endpoint", "http://x", "--rollout-top-k", "5"), "--rollout-top-k is not part of the protocol"),
        (("--endpoint", "http://x", "--samples", "2"), "would be the same episode 2 times"),
        (("--endpoint", "http://x", "--sandbox", "jail"), "no sandbox is called 'jail'"),
        (("--endpoint", "http://x", "--names", "nowhere.txt"), "cannot be read"),
    ],
)
def test_wrong_usage_is_told(evaluate, arguments, message):
    done = evaluate(*arguments)
    assert (done.code, message in done.err) == (2, True), done.err


def test_episodes_are_shown(stacx, tmp_path, episode):
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(json.dumps(episode(task, reward=1.0).record()) + "\n" for task in ("a", "b")))
    listed = stacx("show-trajectory", file).out.splitlines()
    assert [line.split() for line in listed[1:]] == [
        ["0", "a", "0", "done", "1", "1"],
        ["1", "b", "0", "done", "1", "1"],
    ]
    shown = stacx("show-trajectory", file, "--index", "-1").out
    assert "b #0" in shown
    assert "student, 5 tokens, mask 1" in shown
    page = tmp_path / "page.html"
    assert stacx("show-trajectory", file, "--html", page).out == f"{page}\n"
    assert page.read_text().count("<h2") == 2
    assert "0 to 1" in stacx("show-trajectory", file, "--index", "2").err
    assert "there is no file" in stacx("show-trajectory", tmp_path / "no.jsonl").err


def test_a_corpus_of_the_expert_is_shown(stacx, folder, speaker, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    (folder / "held_out.txt").write_text("c\n")
    done = stacx(
        *("collect", "--environment", f"harbor:{folder}", "--teacher", "stacx_core.swe.agent.expert:SolutionExpert"),
        *("--hf-checkpoint", speaker, "--num-tasks", "2", "--num-episodes", "2", "--output-dir", tmp_path / "corpus"),
    )
    assert done.code == 0, done.err
    assert "mean reward 1.000" in done.err
    shard = tmp_path / "corpus/episodes_000000-000001.jsonl"
    assert "--tokenizer" in stacx("show-trajectory", shard).err
    shown = stacx("show-trajectory", shard, "--tokenizer", speaker, "--index", "1").out
    assert "teacher, " in shown
    assert "bash /tmp/solution/solve.sh" in shown
