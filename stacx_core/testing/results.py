"""What a check is and what it reports; free of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stacx_core.testing.trial import Trial

Scope = Literal["recipe", "defaults", "main", "every"]
"""Under which arguments a check runs: the recipe's defaults; these and everything switched on together; or these
and each switch, choice and aggregation by itself. "recipe": once, without any batch."""

NO_LOSS = "the loss cannot be computed; see loss_value"
"""Why most checks do not apply where that one fails."""

Status = Literal["pass", "fail", "not applicable"]


class Wrong(Exception):
    """What a check raises when a property does not hold: one sentence with the values that show it.

    Args:
        reason: the sentence.
        kind: tells failures of one check apart, where a smaller input could show another one.
    """

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind


class NotApplicable(Exception):
    """What a check raises when its property makes no sense for the recipe, with the reason."""


@dataclass(frozen=True)
class Check:
    """One property that every recipe must have.

    Args:
        name: unique, in snake case.
        holds: the property, one sentence.
        finds: the mistakes that break it.
        run: raises `Wrong` or `NotApplicable`; any other exception is a failure too.
        scope: under which arguments it runs.
        shrinks: whether a failure on fewer or shorter samples is the same failure.
        waivable: whether a specialization may state that the property is not its own.
        applies_to_failing: whether it says something about a loss that cannot be computed at all.
    """

    name: str
    holds: str
    finds: str
    run: Callable[[Trial], None]
    scope: Scope
    shrinks: bool
    waivable: bool
    applies_to_failing: bool


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run; filled by `stacx_core.testing.checks`."""


def check(
    scope: Scope = "main", *, shrinks: bool = True, waivable: bool = False, applies_to_failing: bool = False
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Make a function a check. Its docstring is the property, an empty line, and "Finds: " with the mistakes."""

    def add(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        name = function.__name__
        holds, _, finds = inspect.cleandoc(function.__doc__ or "").partition("\n\nFinds: ")
        holds, finds = (" ".join(text.split()) for text in (holds, finds))
        CHECKS[name] = Check(name, holds, finds, function, scope, shrinks, waivable, applies_to_failing)
        return function

    return add


@dataclass(frozen=True)
class SampleShape:
    """One sample of the smallest input that shows a failure."""

    sample: int
    prompt_length: int
    response_length: int
    loss_mask: Sequence[int]
    rollout_id: int | None
    group_index: int | None
    reward: float | None
    status: str

    def __str__(self) -> str:
        mask = "".join(map(str, self.loss_mask))
        text = f"sample {self.sample}: prompt {self.prompt_length}, response {self.response_length}, mask {mask}"
        for name, value in (("rollout", self.rollout_id), ("group", self.group_index), ("reward", self.reward)):
            text += "" if value is None else f", {name} {value:g}"
        return text if self.status == "completed" else f"{text}, {self.status}"


@dataclass(frozen=True)
class CheckResult:
    """What one check says about one recipe.

    Args:
        recipe, check: their names.
        status: "not applicable" comes with a reason.
        reason: what is wrong, or why the check does not apply, or under which arguments alone it does not.
        where: role and arguments under which it is wrong, and the line that raised, if one did.
        smallest: the smallest input found that still shows it; empty when no batch matters.
    """

    recipe: str
    check: str
    status: Status
    reason: str = ""
    where: str = ""
    smallest: tuple[SampleShape, ...] = ()

    def document(self) -> dict[str, Any]:
        """The result as a document that serialises to JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A failure for a person: what, where, and on which input."""
        return [self.reason, f"where: {self.where}", *(f"  {shape}" for shape in self.smallest)]
