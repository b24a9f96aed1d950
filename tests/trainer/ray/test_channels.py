"""Channels of plugins where roles are in different processes: made where all their roles are, or refused by name."""

from __future__ import annotations

import pytest

from stacx_core.errors import RecipeError
from stacx_core.trainer.offload import Turns
from stacx_core.trainer.roles import RoleElsewhereError, RolesHere


def roles(here: str, *away: str) -> RolesHere:
    return RolesHere("averages", {here: object()}, away, Turns(False))  # type: ignore[dict-item]


def test_roles_of_this_process_are_given() -> None:
    assert roles("policy", "critic")["policy"] is not None


def test_another_process_makes_a_channel_of_its_roles() -> None:
    with pytest.raises(RoleElsewhereError):
        roles("critic", "policy", "teacher")["policy"]


def test_a_channel_across_processes_is_refused_by_name() -> None:
    given = roles("policy", "teacher")
    assert "teacher" in given
    message = r"plugin averages: its channel needs roles 'policy' and 'teacher', which are in different processes"
    with pytest.raises(RecipeError, match=message):
        [given[name] for name in ("policy", "teacher")]


def test_an_unknown_role_is_none_of_them() -> None:
    with pytest.raises(KeyError, match="nobody"):
        roles("policy", "critic")["nobody"]
