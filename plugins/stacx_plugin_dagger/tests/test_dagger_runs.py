"""The three recipes through the public command, in a game of three turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXPERT = ("--teacher", "counting_game:expert")
SCORER = ("--teacher", "counting_game:Scorer")
Options = Callable[..., list[str]]


def test_the_share_falls_and_the_labels_are_learnt(stacx: Any, options: Options, lines_of: Any, tmp_path: Path) -> None:
    flags = ["--num-rollout", "60", "--dagger-beta-decay", "4", "--eval-tasks", "14", "--lr", "3e-2"]
    done = stacx(*options("online_dagger", *EXPERT, *flags))
    assert done.code == 0, done.err
    metrics = lines_of(tmp_path / "run")
    assert [line["rollout/beta"] for line in metrics[1:7]] == [1, 0.75, 0.5, 0.25, 0, 0]
    shares = [line["rollout/teacher_turn_frac"] for line in metrics[1:7]]
    assert (shares[0], shares[4], shares[5]) == (1, 0, 0)
    assert 0 < shares[3] < shares[1] < 1
    assert metrics[1]["rollout/loss_tokens"] == 2 * 3 * 8
    assert metrics[0]["eval/reward_mean"] < 0.5
    assert metrics[-1]["eval/reward_mean"] > 0.9


def test_the_book_of_a_run(stacx: Any, options: Options, lines_of: Any, tmp_path: Path) -> None:
    assert stacx(*options("online_dagger", *EXPERT, "--num-rollout", "6")).code == 0
    book = lines_of(tmp_path / "run", "roll_in.jsonl")
    assert [record["rollout"] for record in book] == list(range(6))
    for record, line in zip(book, lines_of(tmp_path / "run"), strict=True):
        assert sum(record["outcomes"].values()) == record["episodes"] == 8
        assert record["turns"] == record["labels"] == 24
        assert line["rollout/teacher_tokens"] == record["teacher_action_tokens"] + record["label_tokens"]
        assert record["label_tokens"] == 2 * (24 - record["teacher_turns"])
    assert book[0]["outcomes"]["full_teacher"] == 8
    assert book[-1]["outcomes"]["pure_student"] == 8


def test_a_turn_that_the_teacher_took_is_not_asked_about_again(stacx: Any, options: Options, game: Any) -> None:
    assert stacx(*options("online_dagger", *EXPERT, "--num-rollout", "1")).code == 0
    assert len(game.asked) == 24
    assert stacx(*options("online_dagger", *EXPERT, "--num-rollout", "3", output="longer")).code == 0
    assert len(game.asked) == 24 + 3 * 24


@pytest.mark.parametrize("algorithm", ["mixture_dagger_opd", "mixture_aggrevate_opd"])
def test_a_mixture_by_who_acted(stacx: Any, options: Options, lines_of: Any, tmp_path: Path, algorithm: str) -> None:
    flags = ["--num-rollout", "6"]
    if algorithm == "mixture_aggrevate_opd":
        flags += ["--aggrevate-step", "1", "--aggrevate-cap", "3"]
    done = stacx(*options(algorithm, *SCORER, *flags))
    assert done.code == 0, done.err
    metrics = lines_of(tmp_path / "run")
    assert metrics[0]["train/teacher_action_frac"] == 1
    assert "train/k3_mean" not in metrics[0]
    assert metrics[0]["train/loss"] == pytest.approx(metrics[0]["train/ce_mean"], rel=1e-5)
    assert any(0 < line["train/teacher_action_frac"] < 1 and "train/k3_mean" in line for line in metrics)
    for line in metrics:
        assert line["train/teacher_action_frac"] == pytest.approx(line["rollout/teacher_token_frac"])


def test_takeovers_in_the_book(stacx: Any, options: Options, lines_of: Any, tmp_path: Path) -> None:
    flags = ["--num-rollout", "3", "--aggrevate-step", "2", "--aggrevate-cap", "3"]
    assert stacx(*options("mixture_aggrevate_opd", *SCORER, *flags)).code == 0
    book = lines_of(tmp_path / "run", "roll_in.jsonl")
    assert [record["kappa_limit"] for record in book] == [0, 2, 3]
    assert book[0]["kappas"] == {"0": 8}
    for record in book:
        assert all(count % 2 == 0 for count in record["kappas"].values())
        taught = sum((3 - int(kappa)) * count for kappa, count in record["kappas"].items())
        assert record["teacher_turns"] == taught


@pytest.mark.parametrize(("mode", "share"), [("student", 0.0), ("teacher", 1.0)])
def test_one_of_them_alone(
    stacx: Any, options: Options, lines_of: Any, tmp_path: Path, mode: str, share: float
) -> None:
    done = stacx(*options("mixture_dagger_opd", *SCORER, "--num-rollout", "2"), STACX_DAGGER_SAMPLING_MODE=mode)
    assert done.code == 0, done.err
    assert [line["train/teacher_action_frac"] for line in lines_of(tmp_path / "run")] == [share, share]


def test_a_teacher_without_scores_is_refused_before_anything_is_played(stacx: Any, options: Options) -> None:
    done = stacx(*options("mixture_dagger_opd", *EXPERT, "--num-rollout", "2"))
    assert done.code == 2
    assert "is a function, which can act but has no log-probs" in done.err


def test_a_run_killed_in_the_middle_of_an_iteration_makes_the_same_coins_and_episodes(
    stacx: Any, child: Any, options: Options, lines_of: Any, tmp_path: Path
) -> None:
    """24 steps of the environment a rollout: the 100th is in the fifth, after the checkpoint of the third."""
    flags = [*SCORER, "--num-rollout", "6", "--save-interval", "3", "--num-tasks", "5"]
    assert stacx(*options("mixture_dagger_opd", *flags, output="unbroken")).code == 0
    broken = options("mixture_dagger_opd", *flags, output="broken")
    assert child(*broken, FATAL_CALL="100").returncode < 0
    assert len(lines_of(tmp_path / "broken", "roll_in.jsonl")) == 4
    resumed = child(*broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for name in ("metrics.jsonl", "roll_in.jsonl"):
        assert lines_of(tmp_path / "broken", name) == lines_of(tmp_path / "unbroken", name)


def test_prompts_are_episodes_of_one_turn(
    stacx: Any, checkpoint: Path, game: Any, lines_of: Any, tmp_path: Path
) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(f'{{"prompt": "{d}?", "label": "{d + 1}"}}\n' for d in range(5)))
    done = stacx(
        *("train", "--algorithm", "online_dagger", "--hf-checkpoint", checkpoint, "--prompt-data", data),
        *("--label-key", "label", "--rm-type", "exact", *EXPERT, "--rollout-batch-size", "5"),
        *("--rollout-max-response-len", "3", "--num-epoch", "2", "--output-dir", tmp_path / "run"),
    )
    assert done.code == 0, done.err
    metrics = lines_of(tmp_path / "run")
    assert len(metrics) == 2
    assert metrics[0]["rollout/reward_mean"] == 1
    assert metrics[1]["rollout/turns_mean"] == 1


@pytest.mark.parametrize("algorithm", ["online_dagger", "mixture_dagger_opd"])
def test_a_teacher_that_fails_is_counted_and_gives_no_number(
    stacx: Any, options: Options, lines_of: Any, tmp_path: Path, algorithm: str
) -> None:
    """It has nothing to say about the digit 0, and no score for the first sample of a rollout."""
    flags = ["--teacher", "counting_game:Forgetful", "--num-rollout", "6", "--rollout-batch-size", "14"]
    flags += ["--n-samples-per-prompt", "1", "--teacher-retries", "0"]
    stopped = stacx(*options(algorithm, *flags, output="stopped"))
    assert stopped.code == 1
    assert "the teacher failed on" in stopped.err
    done = stacx(*options(algorithm, *flags, "--teacher-failure", "drop"))
    assert done.code == 0, done.err
    book, metrics = lines_of(tmp_path / "run", "roll_in.jsonl"), lines_of(tmp_path / "run")
    assert sum(record["outcomes"]["degraded"] for record in book) > 0
    assert sum(line["rollout/teacher_failed"] for line in metrics) > 0
    for record, line in zip(book, metrics, strict=True):
        assert line["rollout/outcome_degraded"] == record["outcomes"]["degraded"]
        assert line["rollout/removed"] <= record["outcomes"]["degraded"]
        assert 0 < line["train/loss"] < 10


@pytest.mark.parametrize(
    ("algorithm", "flags", "message"),
    [
        (
            "online_dagger",
            ["--dagger-sampling-mode", "student", "--dagger-beta-end", "0.5"],
            "--dagger-beta-end has no effect",
        ),
        ("mixture_aggrevate_opd", ["--dagger-beta-floor", "0.5"], "--dagger-beta-floor has no effect"),
        ("mixture_dagger_opd", ["--aggrevate-cap", "5"], "--aggrevate-cap has no effect"),
        ("online_dagger", ["--dagger-sft-mode", "trajectory"], "name its folder with --iter-sft-corpus-dir"),
        ("online_dagger", ["--iter-sft-corpus-dir", "x"], "is replayed only in --dagger-sft-mode trajectory"),
        (
            "online_dagger",
            ["--dagger-sft-mode", "trajectory", "--iter-sft-corpus-dir", "x", "--dagger-replay", "4"],
            "--dagger-replay has no effect on --dagger-sft-mode trajectory",
        ),
        (
            "online_dagger",
            ["--dagger-turn-weight", "uniform", "--loss-aggregation", "token_mean"],
            "does not weigh by episode",
        ),
        ("online_dagger", ["--teacher-load", "nowhere"], "nowhere"),
        ("mixture_dagger_opd", ["--mix-ce-weight", "0", "--mix-k3-weight", "0"], "nothing is learnt"),
        ("mixture_dagger_opd", ["--dagger-beta-start", "0.2", "--dagger-beta-floor", "0.9"], "is above"),
        ("mixture_aggrevate_opd", ["--aggrevate-start", "50", "--aggrevate-cap", "10"], "raise the cap"),
        (
            "online_dagger",
            ["--dagger-sft-mode", "trajectory", "--iter-sft-corpus-dir", "x", "--dagger-beta-floor", "0.5"],
            "--dagger-beta-floor has no effect on --dagger-sft-mode trajectory",
        ),
        (
            "online_dagger",
            ["--dagger-sft-mode", "trajectory", "--iter-sft-corpus-dir", "x"],
            "--environment has no effect on --dagger-sft-mode trajectory",
        ),
    ],
)
def test_settings_that_make_no_sense(
    stacx: Any, options: Options, algorithm: str, flags: list[str], message: str
) -> None:
    done = stacx(*options(algorithm, "--num-rollout", "2", *flags))
    assert done.code == 2
    assert message in done.err


def test_an_exponential_decay_to_nothing_is_warned_of(stacx: Any, options: Options, caplog: Any) -> None:
    flags = ["--dagger-beta-mode", "exponential", "--num-rollout", "1"]
    assert stacx(*options("online_dagger", *EXPERT, *flags)).code == 0
    assert "an exponential decay to 0 is over after one rollout" in caplog.text
