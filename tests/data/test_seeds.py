"""Named random streams."""

from __future__ import annotations

import hashlib

from stacx_core.seeds import sub_seed


def test_the_value_is_the_first_eight_bytes_of_a_sha256() -> None:
    digest = hashlib.sha256(b'[1, "prompts", 2]').hexdigest()
    assert f"{sub_seed(1, 'prompts', 2):016x}" == digest[:16]


def test_streams_differ_by_seed_name_and_index() -> None:
    seeds = {
        sub_seed(0, "a"),
        sub_seed(1, "a"),
        sub_seed(0, "b"),
        sub_seed(0, "a", 0),
        sub_seed(0, "a", 0, 0),
    }
    assert len(seeds) == 5
