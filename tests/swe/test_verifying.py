"""Rewards, and what is none."""

from __future__ import annotations

import pytest

from stacx_core.errors import VerificationError
from stacx_core.swe.verifying import solve, verify

WRITE = "mkdir -p /logs/verifier; printf -- '{}' > /logs/verifier/reward.txt"


@pytest.mark.parametrize(("text", "reward"), [("1", 1.0), ("0\\n", 0.0), (" 0.25 \\n", 0.25), ("-1e-1", -0.1)])
def test_a_bare_number_is_the_reward(sandbox, make_task, text, reward):
    assert verify(sandbox, make_task(test=WRITE.format(text))).reward == reward


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("echo oops; exit 3", r"cannot be read: .*exit code 3\n  oops"),
        (WRITE.format("passed"), "one number from -1000000 to 1000000, not 'passed'"),
        (WRITE.format(""), "one number from -1000000 to 1000000, not ''"),
        (WRITE.format("nan"), "one number from -1000000 to 1000000, not 'nan'"),
        (WRITE.format("inf"), "one number from -1000000 to 1000000, not 'inf'"),
        (WRITE.format("1e308"), "one number from -1000000 to 1000000, not '1e308'"),
        (WRITE.format("1_0"), "not '1_0'"),
        (WRITE.format("\u0663"), "not '\u0663'"),
        (WRITE.format("1 0"), "one number from -1000000 to 1000000, not '1 0'"),
        (WRITE.format("1\\n0"), r"one number from -1000000 to 1000000, not '1\\n0'"),
        ("mkdir -p /logs/verifier; yes 1 | head -c 999 > /logs/verifier/reward.txt", "longer than 64 bytes"),
    ],
)
def test_what_is_no_reward(sandbox, make_task, test, message):
    with pytest.raises(VerificationError, match=message):
        verify(sandbox, make_task(test=test))


HOLD = """python3 -c 'held = b"x" * (1 << 26); input()' < <(sleep 60) & """
"""64 of the 256 MiB that a sandbox has."""


@pytest.mark.parametrize(
    ("test", "seconds", "limit"),
    [
        ("echo begun; " + WRITE.format("1") + "; sleep 60", 3, "time"),
        ("echo begun; " + HOLD * 8 + "wait", 30, "memory"),
    ],
)
def test_tests_that_are_ended_at_a_limit_are_a_reward_of_0(sandbox, make_task, test, seconds, limit):
    """Whatever they had written, and the next tests of the sandbox run as ever."""
    done = verify(sandbox, make_task(test=test, verifier=seconds))
    assert (done.reward, done.over_limit) == (0.0, limit)
    assert done.output.startswith("begun\n")
    assert done.output.endswith(f"[the tests were ended for their use of {limit}]")
    assert verify(sandbox, make_task(test=WRITE.format("1"))).reward == 1.0


def test_the_tests_have_a_home_of_their_own(sandbox, make_task):
    sandbox.run("mkdir -p $HOME/.local/lib; echo x > $HOME/.profile", 30)
    task = make_task(test='[ -z "$(ls ~ | grep -v .keep)" ] && [ ! -e ~/.profile ] && r=1; ' + WRITE.format("'$r'"))
    assert verify(sandbox, task).reward == 1.0


def test_the_solution_runs_in_the_sandbox(sandbox, make_task):
    task = make_task()
    assert verify(sandbox, task).reward == 0.0
    assert solve(sandbox, task).exit_code == 0
    assert verify(sandbox, task).reward == 1.0
