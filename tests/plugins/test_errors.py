"""The tree of errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from stacx_core import errors
from stacx_core.errors import ConfigError, ExitCode, StacxError, nearest

TREE = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, StacxError)]


@pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
def test_errors_keep_type_message_and_hints_across_processes(cls: Any) -> None:
    copy = pickle.loads(pickle.dumps(cls("what", "how", "where")))
    assert type(copy) is cls
    assert (copy.message, copy.hints) == ("what", ("how", "where"))
    assert str(copy) == "what\n  how\n  where"


def test_exit_codes() -> None:
    assert {cls.__name__: int(cls.exit_code) for cls in TREE} == {
        "StacxError": 1,
        "ConfigError": 2,
        "RecipeError": 3,
        "UnknownRecipeError": 2,
        "PluginError": 3,
        "DataError": 2,
        "BatchError": 1,
        "RewardError": 1,
        "EngineError": 1,
        "WeightSyncError": 1,
        "TeacherError": 1,
        "ParityError": 1,
        "EpisodeError": 1,
        "NonFiniteError": 4,
        "CheckpointError": 1,
        "ModelError": 2,
        "WorkerError": 1,
        "SandboxError": 1,
        "VerificationError": 1,
    }
    assert int(ExitCode.INTERRUPTED) == 130


def test_errors_are_caught_as_the_builtin_they_refine() -> None:
    with pytest.raises(ValueError, match="bad"):
        raise ConfigError("bad")


def test_nearest() -> None:
    assert nearest("epsclip", ["eps_clip", "lr"]) == " (did you mean 'eps_clip'?)"
    assert nearest("zzz", ["eps_clip", "lr"]) == ""
