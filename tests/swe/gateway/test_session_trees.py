"""Whatever tree of calls a harness makes, every generated id is trained once, in the context it was generated in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway_parts import TASK, chat_tokenizer
from stacx_core.data.sample import Message
from stacx_core.rollout.episodes import Turn
from stacx_core.swe.gateway.rendering import Renderer
from stacx_core.swe.gateway.sessions import Asked, Session

RENDERER = Renderer(chat_tokenizer())
LETTERS = st.text("abcd", min_size=1, max_size=4)


@dataclass(frozen=True)
class Move:
    """What the harness does next, with the conversation of an earlier call.

    Args:
        of: Picks that call; a new conversation when there is none.
        kind: go on behind its answer, ask the same again, edit its answer or its first message, or begin anew.
        text: What it says.
        said: What it is answered.
        late: Whether the answer comes only after that of the next request.
    """

    of: int
    kind: str
    text: str
    said: str
    late: bool


MOVES = st.builds(
    Move,
    st.integers(0, 9),
    st.sampled_from(["on", "on", "on", "again", "edit", "rewrite", "new"]),
    LETTERS,
    LETTERS,
    st.booleans(),
)


def asked_by(move: Move, past: list[list[Message]]) -> list[Message]:
    new: Message = {"role": "user", "content": move.text}
    if not past or move.kind == "new":
        return [new]
    conversation = past[move.of % len(past)]
    if move.kind == "again":
        return conversation[:-1]
    if move.kind == "edit":
        return [*conversation[:-1], {"role": "assistant", "content": move.text + "!"}, new]
    if move.kind == "rewrite":
        return [{"role": "user", "content": move.text + "?"}, *conversation[1:], new]
    return [*conversation, new]


def play(moves: list[Move]) -> tuple[Session, list[tuple[Asked, Turn]]]:
    """The session, and each call in the order of its answer; an id is generated as what no tokenizer would make."""
    session = Session("s", "", TASK, 0)
    past: list[list[Message]] = []
    answered: list[tuple[Asked, Turn]] = []
    waiting: list[tuple[Asked, Move]] = []

    def answer(asked: Asked, move: Move) -> None:
        first = 1000 + 10 * len(answered)
        ids = [*range(first, first + len(move.said)), 1]
        turn = Turn(asked.context, asked.observation, "student", ids, [-float(i) for i in ids], move.said)
        message = {"role": "assistant", "content": move.said}
        session.record(asked, turn, message)
        answered.append((asked, turn))
        past.append([*asked.messages, message])

    for move in moves:
        asked = session.begin(asked_by(move, past), [], RENDERER)
        waiting.append((asked, move))
        if not move.late:
            while waiting:
                answer(*waiting.pop())
    while waiting:
        answer(*waiting.pop())
    return session, answered


@given(st.lists(MOVES, min_size=1, max_size=12))
def test_every_id_is_trained_once_behind_the_ids_that_it_was_generated_behind(moves: list[Move]) -> None:
    session, answered = play(moves)
    samples = session.end(1.0).samples(group=0, first_index=20)
    trained: dict[int, list[int]] = {}
    for sample in samples:
        sample.validate()
        assert sample.rollout_id == 20
        for place, (mask, log_prob) in enumerate(zip(sample.mask, sample.rollout_log_probs or [], strict=True)):
            position = sample.prompt_length + place
            if mask:
                assert log_prob == -float(sample.tokens[position])
                assert sample.tokens[position] not in trained or sample.tokens[position] == 1
                trained[sample.tokens[position]] = sample.tokens[:position]
            else:
                assert sample.tokens[position] < 1000
    for _, turn in answered:
        for place, own in enumerate(turn.ids[:-1]):
            assert trained.pop(own) == [*turn.context, *turn.ids[:place]]
    assert set(trained) <= {1}
    leaves = len(answered) - len({id(asked.parent) for asked, _ in answered if asked.parent is not None})
    assert len(samples) == leaves


@given(st.lists(MOVES, min_size=1, max_size=12))
def test_numbers_are_those_of_the_calls(moves: list[Move]) -> None:
    _, answered = play(moves)
    assert sorted(asked.number for asked, _ in answered) == list(range(len(moves)))


def test_a_request_that_came_to_nothing_leaves_its_number() -> None:
    session = Session("s", "", TASK, 0)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    first = session.begin(messages, [], RENDERER)
    second = session.begin(messages, [], RENDERER)
    session.abandon(first)
    assert (first.number, second.number) == (0, 1)
    assert session.begin(messages, [], RENDERER).number == 0


def test_of_equal_answers_to_equal_requests_the_later_is_gone_on_from() -> None:
    """A harness that did not get the first one asked again."""
    session, answered = play([Move(0, "new", "a", "b", False), Move(0, "again", "", "b", False)])
    said = [*answered[0][0].messages, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    parent = session.begin(said, [], RENDERER).parent
    assert parent is not None
    assert parent.turn is answered[1][1]


def test_other_tools_are_another_conversation() -> None:
    session, answered = play([Move(0, "new", "a", "b", False)])
    said = [*answered[0][0].messages, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert session.begin(said, [], RENDERER).parent is not None
    assert session.begin(said, [tool], RENDERER).parent is None
