"""The growing data set: what is kept, what is drawn, and that a resumed run draws the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stacx_core import DataError, Sample
from stacx_plugin_dagger.replay import LabelStore

EXPERT = ("--teacher", "counting_game:expert")
Options = Callable[..., list[str]]


def episode(number: int, states: int = 2) -> list[Sample]:
    return [
        Sample(group_index=number, tokens=[number, 7, turn], response_length=1, turn_ids=[turn], task_id=f"t{number}")
        for turn in range(states)
    ]


def drawn(store: LabelStore, rollout: int, count: int, seed: int = 3) -> list[list[list[int]]]:
    return [[sample.tokens for sample in episode] for episode in store.draw(rollout, count, seed)]


def test_whole_episodes_of_earlier_rollouts_are_drawn_none_twice(tmp_path: Path) -> None:
    store = LabelStore(str(tmp_path))
    for rollout in range(3):
        store.add(rollout, [episode(10 * rollout), [], episode(10 * rollout + 1)])
    assert drawn(store, 0, 5) == []
    assert sorted(drawn(store, 2, 9)) == [[[n, 7, 0], [n, 7, 1]] for n in (0, 1, 10, 11)]
    assert len(drawn(store, 3, 4)) == 4
    assert {states[0][0] for seed in range(40) for states in drawn(store, 3, 1, seed)} == {0, 1, 10, 11, 20, 21}


def test_another_process_draws_the_same_and_rollouts_made_again_replace_theirs(tmp_path: Path) -> None:
    store = LabelStore(str(tmp_path))
    for rollout in range(4):
        store.add(rollout, [episode(rollout)])
    again = LabelStore(str(tmp_path))
    assert drawn(again, 2, 1) == drawn(store, 2, 1)
    again.add(2, [episode(5)])
    assert sorted(states[0][0] for states in drawn(again, 3, 9)) == [0, 1, 5]


def test_labels_that_are_gone_are_named(tmp_path: Path) -> None:
    LabelStore(str(tmp_path)).add(0, [episode(0)])
    with pytest.raises(DataError, match=r"000001\.jsonl is missing"):
        drawn(LabelStore(str(tmp_path)), 2, 1)


def test_labels_that_are_damaged_are_named(tmp_path: Path) -> None:
    LabelStore(str(tmp_path)).add(0, [episode(0)])
    path = tmp_path / "labels" / "000000.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"000000\.jsonl is damaged"):
        drawn(LabelStore(str(tmp_path)), 1, 1)


def test_a_small_replay_leaves_no_label_out(stacx: Any, options: Options, lines_of: Any, tmp_path: Path) -> None:
    """Eight episodes a rollout in one step; seven old ones do not fill another."""
    assert stacx(*options("online_dagger", *EXPERT, "--num-rollout", "2", "--dagger-replay", "7")).code == 0
    assert [line["train/dropped_rollouts"] for line in lines_of(tmp_path / "run")] == [0, 0]


def test_a_run_trains_on_old_labels_beside_its_own(stacx: Any, options: Options, lines_of: Any, tmp_path: Path) -> None:
    """Eight episodes of three states a rollout; the second can replay only the eight of the first."""
    assert stacx(*options("online_dagger", *EXPERT, "--num-rollout", "3", "--dagger-replay", "12")).code == 0
    metrics = lines_of(tmp_path / "run")
    assert [line["rollout/replayed_labels"] for line in metrics] == [0, 24, 36]
    assert [line["rollout/loss_tokens"] for line in metrics] == [48, 96, 120]
    assert [record["labels"] for record in lines_of(tmp_path / "run", "roll_in.jsonl")] == [24, 24, 24]
    assert metrics[-1]["train/updates"] == 3


def test_a_killed_run_replays_what_the_unbroken_one_does(
    stacx: Any, child: Any, options: Options, lines_of: Any, tmp_path: Path
) -> None:
    flags = [*EXPERT, "--num-rollout", "6", "--save-interval", "3", "--dagger-replay", "8"]
    flags += ["--epochs-per-rollout", "2", "--num-steps-per-rollout", "2"]
    assert stacx(*options("online_dagger", *flags, output="unbroken")).code == 0
    broken = options("online_dagger", *flags, output="broken")
    assert child(*broken, FATAL_CALL="100").returncode < 0
    resumed = child(*broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert lines_of(tmp_path / "broken") == lines_of(tmp_path / "unbroken")
    assert lines_of(tmp_path / "unbroken")[-1]["train/updates"] == 24
