"""One tree of exceptions, each with the exit code the command ends with.

A message says what is wrong, where, and what would be right; `hints` are further lines a user can act on.
Every class pickles, so that an error keeps its type when it crosses a process border.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the `stacx` command returns to the shell."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    PLUGIN = 3
    NON_FINITE = 4
    INTERRUPTED = 130


class StacxError(Exception):
    """Base of every error Stacx raises on purpose: `StacxError(message, *hints)`."""

    exit_code: ClassVar[ExitCode] = ExitCode.RUN_FAILED

    def __init__(self, message: str, *hints: str) -> None:
        super().__init__(message, *hints)
        self.message = message
        self.hints = hints

    def __str__(self) -> str:
        return "\n  ".join((self.message, *self.hints))


class ConfigError(StacxError, ValueError):
    """A flag, an environment variable or a configuration key with a wrong name or value."""

    exit_code = ExitCode.USAGE


class RecipeError(StacxError, ValueError):
    """A malformed recipe."""

    exit_code = ExitCode.PLUGIN


class UnknownRecipeError(StacxError, KeyError, ValueError):
    """No recipe of that name: a `KeyError` for the registry, a `ValueError` for whoever passed the name."""

    exit_code = ExitCode.USAGE


class PluginError(StacxError, RuntimeError):
    """A plugin that is broken, switched off, made for another API, or at odds with another plugin."""

    exit_code = ExitCode.PLUGIN


class DataError(StacxError, ValueError):
    """A malformed row or file of the user's data; names the file and the line."""

    exit_code = ExitCode.USAGE


class BatchError(StacxError, ValueError):
    """A training batch that breaks the contract of its keys."""


class RewardError(StacxError, RuntimeError):
    """A reward function that failed or returned what is no reward."""


class EngineError(StacxError, RuntimeError):
    """A rollout or teacher server that does not answer, refuses, or answers with what is no answer; names its URL."""


class WeightSyncError(EngineError):
    """Weights that do not fit a server's model, or did not reach it.

    Attributes:
        url: The server's address, or "" when no single one is to blame.
    """

    def __init__(self, message: str, *hints: str, url: str = "") -> None:
        super().__init__(message, *hints)
        self.url = url


class TeacherError(StacxError, RuntimeError):
    """A teacher that does not answer, or answers with what is no score."""


class ParityError(StacxError, RuntimeError):
    """Two parts of a run that say different things of the same tokens."""


class EpisodeError(StacxError, RuntimeError):
    """An environment that failed every episode of a rollout."""


class SandboxError(StacxError, RuntimeError):
    """A sandbox that cannot be made, or that ended while an episode was in it."""


class VerificationError(StacxError, RuntimeError):
    """Tests of a task that gave no reward; not the same as a reward of 0."""


class WorkerError(StacxError, RuntimeError):
    """A process that trains a role and died, stopped, or failed by an error that is none of Stacx's own."""


class NonFiniteError(StacxError, ArithmeticError):
    """A loss, gradient or weight that is NaN or infinite."""

    exit_code = ExitCode.NON_FINITE


class CheckpointError(StacxError, RuntimeError):
    """A checkpoint that cannot be written, or one that does not fit the run."""


class ModelError(StacxError, ValueError):
    """A model or tokenizer folder that cannot be used."""

    exit_code = ExitCode.USAGE


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the closest choice, or "" when none is close."""
    found = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
