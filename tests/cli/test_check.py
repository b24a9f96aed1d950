"""`stacx check`: what may be asked for, the table, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest


def test_a_distribution_is_checked_with_a_table(stacx: Callable[..., Any]) -> None:
    done = stacx("check", "stacx-core", STACX_PLUGINS="")
    assert done.code == 0, done.err
    rows = dict(re.split(r"  +", line)[:2] for line in done.out.splitlines() if "  " in line)
    assert rows["CHECK"] == "sft"
    assert rows["masked_rows"] == "pass"
    assert rows["groups_by_id"] == "-"
    assert "the role reads no group_indices" in done.out
    assert re.search(r"all \d+ checks passed for 1 recipe in \d+ s", done.out)


@pytest.mark.parametrize("arguments", [[], ["sft", "--all"]])
def test_one_thing_must_be_named(stacx: Callable[..., Any], arguments: list[str]) -> None:
    done = stacx("check", *arguments)
    assert done.code == 2
    assert "name a recipe or a distribution, or pass --all" in done.err


def test_an_unknown_name_is_a_usage_error(stacx: Callable[..., Any]) -> None:
    done = stacx("check", "sfd", STACX_PLUGINS="")
    assert done.code == 2
    assert "no recipe is named 'sfd'" in done.err
