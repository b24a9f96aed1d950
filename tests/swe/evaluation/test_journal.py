"""The folder of an evaluation: what is there is kept, and nothing else is mixed in."""

from __future__ import annotations

import json

import pytest

from stacx_core.errors import ConfigError, DataError
from stacx_core.swe.evaluation.journal import Journal, read_episodes
from stacx_core.swe.tasks import tasks_fingerprint

SETTINGS = {"model": "m", "max_turns": 3, "names": ["a", "b"], "limit": None}


def test_episodes_are_there_when_it_is_opened_again(tmp_path, episode):
    journal = Journal(tmp_path / "e", SETTINGS)
    written = [episode("a", 0, reward=1.0, counts={"solved": 1}), episode("b", 1)]
    for trajectory in written:
        journal.add(trajectory)
    again = Journal(tmp_path / "e", dict(reversed(SETTINGS.items())))
    assert read_episodes(again.file) == written
    assert [again.has(*place) for place in (("a", 0), ("a", 1), ("b", 0), ("b", 1))] == [True, False, False, True]
    assert again.trajectories(["b", "a"], 2) == written[::-1]
    assert again.trajectories(["a", "b"], 1) == written[:1]


def test_half_a_line_is_dropped_and_played_again(tmp_path, episode):
    journal = Journal(tmp_path, SETTINGS)
    for task in ("a", "b"):
        journal.add(episode(task))
    whole = journal.file.read_bytes()
    for size in range(len(whole)):
        journal.file.write_bytes(whole[:size])
        again = Journal(tmp_path, SETTINGS)
        assert [again.has("a", 0), again.has("b", 0)] == [size > whole.index(b"\n"), False]
        assert journal.file.read_bytes() == whole[: whole[:size].rfind(b"\n") + 1]


def test_an_infrastructure_error_is_played_again_and_then_forgotten(tmp_path, episode):
    journal = Journal(tmp_path, SETTINGS)
    journal.add(episode(outcome="env_error", error="SandboxError: gone"))
    assert not Journal(tmp_path, SETTINGS).has("a", 0)
    journal.add(episode(reward=1.0))
    again = Journal(tmp_path, SETTINGS)
    assert again.has("a", 0)
    assert [t.reward for t in again.trajectories(["a"], 1)] == [1.0]
    assert len(read_episodes(again.file)) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_turns": 4}, "max_turns was 3 and is 4; choose|max_turns was 3 and is 4"),
        ({"names": ["a"]}, r"names was \['a', 'b'\] and is \['a'\]"),
        ({"more": 1}, "more was None and is 1"),
    ],
)
def test_other_settings_are_refused(tmp_path, episode, changed, message):
    Journal(tmp_path, SETTINGS).add(episode())
    with pytest.raises(ConfigError, match=message):
        Journal(tmp_path, {**SETTINGS, **changed})


def test_settings_may_change_before_the_first_episode(tmp_path, episode):
    """As when the first command named a model that is not there."""
    Journal(tmp_path, {**SETTINGS, "model": "n"})
    Journal(tmp_path, SETTINGS).add(episode())
    with pytest.raises(ConfigError, match="model was 'm' and is 'n'"):
        Journal(tmp_path, {**SETTINGS, "model": "n"})


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"has notes\.txt\) and is no evaluation"):
        Journal(tmp_path, SETTINGS)


def test_a_damaged_line_is_named(tmp_path, episode):
    journal = Journal(tmp_path, SETTINGS)
    journal.add(episode())
    for line in ("[]", "{}", "no", json.dumps({**episode().record(), "parts": [{"who": "x"}]})):
        journal.file.write_text(json.dumps(episode().record()) + f"\n{line}\n")
        with pytest.raises(DataError, match="line 2: no episode of an evaluation"):
            Journal(tmp_path, SETTINGS)


def test_tasks_are_known_by_what_they_hold(make_task):
    task, other = make_task("a"), make_task("b")
    before = tasks_fingerprint([task])
    assert before == tasks_fingerprint([task])
    assert before != tasks_fingerprint([other])
    assert before != tasks_fingerprint([task, other])
    (task.folder / "solution" / "solve.sh").write_text("true\n")
    assert before == tasks_fingerprint([task])
    (task.folder / "tests" / "test.sh").write_text("true\n")
    assert before != tasks_fingerprint([task])
