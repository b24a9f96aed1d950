"""Pages and terminals: everything is escaped, long outputs are folded, and nothing comes from elsewhere."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stacx_core.errors import DataError
from stacx_core.rollout.episodes import Episode, Turn
from stacx_core.swe.evaluation.page import trajectories_page
from stacx_core.swe.evaluation.reading import read_trajectories
from stacx_core.swe.evaluation.terminal import print_trajectory
from stacx_core.swe.evaluation.trajectory import Part, Trajectory


class Page(HTMLParser):
    """The tags, their attributes and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


TEXTS = st.text() | st.sampled_from(["<script>alert(1)</script>", '"><img src=x onerror=y>', "</pre>&amp;"])


def spoken(*texts: str, outcome: str = "done", error: str = "") -> Trajectory:
    parts = [Part("environment" if n % 2 == 0 else "student", text, n, n % 2) for n, text in enumerate(texts)]
    return Trajectory("task", 0, outcome, 1.0, parts, error, {}, texts[0])


@given(TEXTS, TEXTS, TEXTS)
def test_nothing_that_was_said_becomes_part_of_the_page(name: str, text: str, error: str) -> None:
    made = Trajectory(name, 1, error, 0.0, [Part("student", text, 1, 1), Part("environment", text)], error, {}, text)
    page = Page(trajectories_page(name, [(0, made), (1, made)]))
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "table", "tr", "th", "td", "a", "span",
               "p", "pre", "div", "details", "summary"}  # fmt: skip
    assert set(page.tags) <= allowed
    assert page.attributes <= {"lang", "charset", "id", "href", "class", "open"}


def test_a_page_folds_what_commands_printed_and_shows_the_rest() -> None:
    long = "\n".join(f"line {number}" for number in range(50))
    page = trajectories_page("t", [(4, spoken(long, "I <look>.", long, "more", "short"))])
    read = Page(page)
    assert read.tags.count("details") == 2  # the command's output, and the end
    assert "line 0 (50 lines)" in page
    assert "I &lt;look&gt;." in page
    assert read.text.count("line 49") == 3
    for words in ("student, 1 tokens, mask 1", "environment, 2 tokens, mask 0", "reward 1"):
        assert words in page
    assert "http" not in page
    assert "src=" not in page


def printed(trajectory: Trajectory, everything: bool = False) -> str:
    out = io.StringIO()
    print_trajectory(trajectory, Console(file=out, width=100, markup=False, highlight=False), everything)
    return out.getvalue()


def test_a_terminal_folds_too_and_obeys_nothing() -> None:
    long = "\n".join(f"line {number}" for number in range(50))
    made = spoken("begin", "I look [bold]there\x1b[2J", long, "x", outcome="env_error", error="SandboxError: gone")
    shown = printed(made)
    assert "... 38 lines, shown by --full ..." in shown
    assert "line 30" not in shown
    assert "line 30" in printed(made, everything=True)
    assert "[bold]there\N{REPLACEMENT CHARACTER}[2J" in shown
    assert "SandboxError: gone" in shown
    assert "\x1b" not in shown


def test_branches_are_told_and_their_tokens_counted_from_where_they_begin() -> None:
    """The second turn goes on from the first and so does the third; the fourth is of another agent."""
    turns = [
        Turn([1, 2], "task", "student", [3], [0.0], "look"),
        Turn([1, 2, 3, 4], "found", "student", [5], [0.0], "mend"),
        Turn([1, 2, 3, 6, 7, 8], "anew", "student", [9], [0.0], "think", branch=True),
        Turn([5, 5, 5, 5], "help", "student", [6], [0.0], "done", branch=True, system="You help."),
    ]
    made = Trajectory.of_episode(Episode(0, 0, 0, "t", turns=turns))
    assert [(part.text, part.tokens, part.branch) for part in made.parts if part.who == "environment"] == [
        ("task", 2, False),
        ("found", 1, False),
        ("anew", 3, True),
        ("You help.", None, True),
        ("help", 4, False),
    ]
    assert Trajectory.of_record(json.loads(json.dumps(made.record()))) == made
    assert printed(made).count("a branch begins: environment") == 2
    assert trajectories_page("t", [(0, made)]).count("a branch begins: environment") == 2


def test_a_corpus_is_cut_where_the_author_changes(tmp_path) -> None:
    record = {
        "episode": 7, "seed": 0, "outcome": "done", "tokens": [1, 2, 3, 4, 5, 6, 7], "response_length": 5,
        "response": "", "loss_mask": [1, 1, 0, 1, 1], "executor": [2, 2, 0, 1, 1], "turn_ids": [0, 0, -1, 1, 1],
        "reward": 0.5, "task_id": "train/3",
    }  # fmt: skip
    file = tmp_path / "episodes_000000-000000.jsonl"
    file.write_text(json.dumps(record) + "\n")
    (made,) = read_trajectories(file, lambda ids: " ".join(map(str, ids)))
    assert (made.task, made.sample, made.reward) == ("train/3", 7, 0.5)
    assert [(p.who, p.text, p.tokens, p.mask) for p in made.parts] == [
        ("environment", "1 2", 2, 0),
        ("teacher", "3 4", 2, 1),
        ("environment", "5", 1, 0),
        ("student", "6 7", 2, 1),
    ]
    with pytest.raises(DataError, match="are token ids"):
        read_trajectories(file)


@pytest.mark.parametrize("line", ["", "3", "{}", '{"parts": []}', '{"tokens": 3}', "no"])
def test_what_is_no_episode_is_refused(tmp_path, line) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(DataError):
        read_trajectories(file, str)
