"""What the agent is shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stacx_core.swe.agent.words import bounded, first_words, refusal_words, result_words
from stacx_core.swe.sandboxes import CommandResult


def test_the_middle_of_long_output_is_counted() -> None:
    assert bounded("abcdefghij\n\n", 10) == "abcdefghij"
    assert bounded("abcdefghijk", 5) == "abc\n[... 6 characters left out ...]\njk"
    assert bounded("abcdefghijk", 1) == "a\n[... 10 characters left out ...]\n"


@given(st.text(), st.integers(1, 40))
def test_bounded_output_is_its_two_ends(text: str, limit: int) -> None:
    shown = bounded(text, limit)
    assert len(shown) <= limit + len(f"\n[... {len(text)} characters left out ...]\n")
    assert text.startswith(shown.partition("\n[... ")[0])


def test_a_result_says_how_it_ended() -> None:
    assert result_words(CommandResult("a\n", 3), 30, 100) == "exit code: 3\n<output>\na\n</output>"
    late = result_words(CommandResult("", 137, timed_out=True, limit="time"), 2.5, 100)
    assert late.startswith("exit code: 137 (ended after 2.5 seconds, with everything it had started)\n")
    assert result_words(CommandResult("", 137, limit="memory"), 30, 100).startswith(
        "exit code: 137 (ended for its use of memory)"
    )


def test_a_refusal_counts_down() -> None:
    assert "Nothing was run: no block." in refusal_words("no block", 2)
    assert refusal_words("no block", 2).endswith("2 more such answers in a row will end the episode.")
    assert refusal_words("no block", 1).endswith("1 more such answer in a row will end the episode.")


def test_the_first_words_name_task_folder_and_limits(make_task) -> None:
    words = first_words(make_task("mend"), "/app", 60)
    assert words.startswith("Task: mend\n\nWrite 1 into score.txt.\n")
    assert "new shell in /app;" in words
    assert "may take 30 seconds, all of them together 30." in words
