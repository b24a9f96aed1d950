"""Runs the checks on a recipe, and shrinks what fails."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import stacx_core.testing.checks  # noqa: F401
from stacx_core.config import TrainingConfig
from stacx_core.errors import ConfigError, StacxError
from stacx_core.testing.deadline import CHECK_SECONDS, Hangs, deadline
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import CHECKS, NO_LOSS, Check, CheckResult, NotApplicable, Wrong
from stacx_core.testing.rows import Row
from stacx_core.testing.shrinking import shrink
from stacx_core.testing.subject import Subject, trained_subjects
from stacx_core.testing.trial import Trial
from stacx_core.testing.variants import DEFAULTS, EVERYTHING, ArgumentsCrash, Variant, default_variant, variants

DOOR = "default_arguments"
"""Where this check fails nothing else can be asked."""

GATE = "loss_value"
"""Where this check fails there is no loss to say more about."""

_SCOPES = {"recipe": (DEFAULTS,), "defaults": (DEFAULTS,), "main": (DEFAULTS, EVERYTHING), "every": ()}


class Suite:
    """The conformance suite on one recipe.

    Args:
        config: the recipe.
        ranks: the processes of `data_parallel`, which the caller ends.
        seconds: how long a check may take under one set of arguments.
    """

    def __init__(self, config: TrainingConfig, ranks: Ranks, seconds: float = CHECK_SECONDS) -> None:
        self.config = config
        self.ranks = ranks
        self.seconds = seconds
        self._hanging = ""
        self._known: dict[tuple[str, str], Trial] = {}
        self._failing: dict[tuple[str, str], bool] = {}

    def run(self, check: Check) -> CheckResult:
        """What a check says, under the first arguments and for the first role that fails it."""
        name = self.config.name
        if self._refusal:
            where = f"arguments: {DEFAULTS}"
            if check.name == DOOR:
                return CheckResult(name, check.name, "fail", self._refusal, where)
            return CheckResult(name, check.name, "not applicable", f"the defaults are refused; see {DOOR}")
        if self._hanging:
            return CheckResult(name, check.name, "not applicable", f"the recipe hangs; see {self._hanging}")
        exceptions: dict[str, str] = {}
        passed = False
        for trial in self._trials(check):
            reason = self._waived(check, trial.subject)
            problem = NotApplicable(reason) if reason else self._problem(check, trial)
            if isinstance(problem, NotApplicable):
                exceptions.setdefault(str(problem), self._name(trial.subject))
            elif problem is not None:
                return self._failure(check, trial, problem)
            else:
                passed = True
        if passed:
            notes = (f"not under {place}: {reason}" for reason, place in exceptions.items())
            return CheckResult(name, check.name, "pass", "; ".join(notes))
        reason = "; ".join(exceptions) or NO_LOSS
        return CheckResult(name, check.name, "not applicable", reason)

    @cached_property
    def _refusal(self) -> str:
        try:
            default_variant(self.config)
        except ArgumentsCrash as error:
            return str(error)
        except ConfigError as error:
            return f"the recipe refuses its own defaults: {error}"
        return ""

    @cached_property
    def _variants(self) -> list[Variant]:
        return variants(self.config)

    def _trials(self, check: Check) -> Iterator[Trial]:
        wanted = _SCOPES[check.scope]
        for variant in self._variants:
            if wanted and variant.name not in wanted:
                continue
            subjects = trained_subjects(self.config, variant.name, variant.args)
            for subject in subjects[:1] if check.scope == "recipe" else subjects:
                if check.applies_to_failing or not self._fails(subject):
                    yield self._trial(subject)

    def _trial(self, subject: Subject) -> Trial:
        """The trial of a role and a variant, kept for all checks, which share its batch and its outcome."""
        key = (subject.role.name, subject.variant)
        if key not in self._known:
            self._known[key] = Trial(subject, self.ranks)
        return self._known[key]

    def _fails(self, subject: Subject) -> bool:
        """Whether there is no loss at all under these arguments."""
        key = (subject.role.name, subject.variant)
        if key not in self._failing:
            self._failing[key] = self._problem(CHECKS[GATE], self._trial(subject)) is not None
        return self._failing[key]

    def _name(self, subject: Subject) -> str:
        alone = sum(role.trainable for role in self.config.roles) == 1
        return subject.variant if alone else f"{subject.variant} of role {subject.role.name!r}"

    @staticmethod
    def _waived(check: Check, subject: Subject) -> str:
        """The reason the specialization gives for a check it may decline."""
        try:
            return subject.specialization().waives().get(check.name, "") if check.waivable else ""
        except KeyboardInterrupt:
            raise
        except BaseException:  # `structure` reports it.
            return ""

    def _problem(self, check: Check, trial: Trial) -> BaseException | None:
        """What a check raises; whatever a plugin does, only the user ends the command."""
        try:
            with deadline(self.seconds):
                check.run(trial)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, Hangs):
                self._hanging = check.name
            return error
        return None

    def _failure(self, check: Check, trial: Trial, problem: BaseException) -> CheckResult:
        rows: Sequence[Row] = () if check.scope == "recipe" else vars(trial).get("rows", ())
        if check.shrinks and rows and not self._hanging:
            rows, problem = self._smallest(check, trial, problem)
        where = f"role {trial.subject.role.name!r}, arguments: {trial.subject.variant}{_line(problem)}"
        shapes = tuple(row.shape() for row in rows)
        return CheckResult(self.config.name, check.name, "fail", _text(problem), where, shapes)

    def _smallest(self, check: Check, trial: Trial, problem: BaseException) -> tuple[Sequence[Row], BaseException]:
        """The smallest rows that fail in the same way, and how they do."""
        last = problem

        def fails(rows: Sequence[Row]) -> bool:
            nonlocal last
            found = self._problem(check, replace(trial, given=tuple(rows)))
            if found is None or _kind(found) != _kind(problem):
                return False
            last = found
            return True

        rows = shrink(trial.rows, fails)
        return rows, last


def _kind(problem: BaseException) -> tuple[type[BaseException], str]:
    return type(problem), problem.kind if isinstance(problem, Wrong) else ""


def _text(problem: BaseException) -> str:
    if isinstance(problem, Wrong | StacxError | Hangs):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def _line(problem: BaseException) -> str:
    """Where an exception that is no finding of the suite was raised."""
    frames = traceback.extract_tb(problem.__traceback__)
    if isinstance(problem, Wrong) or not frames:
        return ""
    outside = [f for f in frames if "stacx_core" not in Path(f.filename).parts] or frames
    frame = next((f for f in reversed(outside) if "site-packages" not in f.filename), outside[-1])
    return f", raised in {frame.name}, {Path(frame.filename).name}:{frame.lineno}"


def check_recipe(
    config: TrainingConfig, checks: Sequence[str] | None = None, ranks: Ranks | None = None
) -> list[CheckResult]:
    """Run the conformance suite on a recipe.

    Args:
        config: the recipe, which need not be registered.
        checks: names from `CHECKS`; all of them unless told.
        ranks: running processes to share with other recipes; started and ended here unless given.

    Raises:
        KeyError: an unknown check.
    """
    with Ranks() as own:
        suite = Suite(config, ranks or own)
        return [suite.run(CHECKS[name]) for name in (CHECKS if checks is None else checks)]
