"""The messages of the supervisor, and what it keeps of an output."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.swe.sandboxes.sandbox import command_result
from stacx_core.swe.sandboxes.supervisor import CHUNK, HeadTail, read_body, read_chunk, write_message


@given(st.lists(st.binary(max_size=30)), st.integers(2, 40))
def test_the_first_and_the_last_bytes_are_kept(pieces, limit):
    kept, whole = HeadTail(limit), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    head, tail, cut = kept.halves()
    assert len(head) + cut + len(tail) == len(whole)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert (cut == 0) == (len(whole) <= limit)
    assert len(head) + len(tail) == min(limit, len(whole))


@given(st.lists(st.binary(min_size=1, max_size=20)))
def test_messages_come_back(pieces):
    stream = io.BytesIO()
    write_message(stream, {"do": "x"}, pieces)
    stream.seek(0)
    assert read_chunk(stream) == b'{"do": "x"}'
    assert list(read_body(stream)) == pieces
    with pytest.raises(EOFError):
        read_chunk(stream)


def test_long_bodies_go_in_pieces():
    stream = io.BytesIO()
    write_message(stream, {}, [bytes(2 * CHUNK + 1)])
    stream.seek(0)
    read_chunk(stream)
    assert [len(piece) for piece in read_body(stream)] == [CHUNK, CHUNK, 1]


def test_a_letter_across_the_halves_stays_whole():
    data = "aé".encode()
    assert command_result({"exit_code": 0, "limit": "", "cut": 0}, data[:2], data[2:]).output == "aé"
    cut = command_result({"exit_code": 0, "limit": "time", "cut": 7}, b"a", b"z")
    assert cut.output == "a\n[... 7 bytes left out ...]\nz"
    assert (cut.truncated, cut.timed_out) == (7, True)
