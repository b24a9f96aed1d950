"""Finding environments by name, and the adapters of other packages."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import pytest

from stacx_core.errors import ConfigError, DataError
from stacx_core.rollout.environments.loading import load_environment

SECRET = re.compile(r"Target Number: (\d+)")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("texarena", r"did you mean 'textarena'.*package.module:Class"),
        ("no_such_module:Game", "no_such_module"),
        ("stacx_core.knobs:PLUGIN_SECTION", "is of type str; it must be a class"),
        ("stacx_core.knobs:Args", "has no reset, step, render, close; an environment has"),
        ("textarena:GuesTheNumber-v0", "did you mean 'GuessTheNumber-v0'"),
    ],
)
def test_a_wrong_environment_is_a_config_error(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_environment(reference)


@pytest.mark.parametrize("reference", ["reasoning_gym:chain_sun", "reasoning_gym:chain_sum?min_term=2"])
def test_a_wrong_task_is_a_data_error(reference: str) -> None:
    with pytest.raises(DataError, match=r"chain_sum|min_term"):
        load_environment(reference)


def test_a_reasoning_gym_task_is_one_turn_scored_by_its_data_set() -> None:
    make = load_environment("reasoning_gym:chain_sum?min_terms=2&max_terms=2")
    task = make()
    question = task.reset(7)
    assert question == make().reset(7) != make().reset(8)
    answer = task.render().rpartition("answer: ")[2]
    step = task.step(f"I think <answer>{answer}</answer>")
    assert (step.reward, step.done) == (1.0, True)
    assert task.step(str(int(answer) + 1)).reward < 1
    task.close()


def test_number_guessing_is_played_turn_by_turn() -> None:
    game = load_environment("textarena:GuessTheNumber-v0")()
    rules = game.reset(3)
    assert str(rules).startswith("You are Player 0. You are playing Guess The Number.")
    secret = int(SECRET.search(game.render()).group(1))  # type: ignore[union-attr]
    low, high, hints = 1, 20, []
    for _ in range(10):
        guess = (low + high) // 2
        step = game.step(f"[{guess}]")
        if step.done:
            break
        hints.append(step.observation)
        low, high = (guess + 1, high) if "higher" in str(step.observation) else (low, guess - 1)
    assert (guess, step.reward) == (secret, 1.0)
    assert set(hints) <= {"The target number is higher.", "The target number is lower."}


def test_an_invalid_move_is_told_and_a_second_one_ends_the_game() -> None:
    game = load_environment("textarena:GuessTheNumber-v0?max_number=50")()
    assert "between 1 and 50" in str(game.reset(3))
    first = game.step("[99]")
    assert "guessed a number outside the range" in str(first.observation)
    assert (first.reward, first.done) == (0.0, False)
    second = game.step("[99]")
    assert (second.reward, second.done) == (0.0, True)


def secret_of(make: Any, seed: int) -> str:
    game = make()
    game.reset(seed)
    return str(game.render())


def test_games_side_by_side_draw_what_they_draw_alone() -> None:
    make = load_environment("textarena:GuessTheNumber-v0")
    alone = [secret_of(make, seed) for seed in range(24)]
    together: list[str] = [""] * 24

    def play(seed: int) -> None:
        together[seed] = secret_of(make, seed)

    before = random.getstate()
    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert len(set(alone)) > 5
    assert random.getstate() == before


def test_a_game_for_two_is_refused_when_it_begins() -> None:
    with pytest.raises(AssertionError):
        load_environment("textarena:TicTacToe-v0")().reset(0)
