"""One call to several servers at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def everywhere(items: Sequence[Item], call: Callable[[Item], Awaitable[Result]]) -> list[Result]:
    """The results in order; when a call fails, its error once all the others have ended too."""
    results = await _all(items, call)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


async def failures(items: Sequence[Item], call: Callable[[Item], Awaitable[object]]) -> list[BaseException]:
    """The errors of the calls that failed."""
    return [result for result in await _all(items, call) if isinstance(result, BaseException)]


async def _all(items: Sequence[Item], call: Callable[[Item], Awaitable[Result]]) -> list[Result | BaseException]:
    return await asyncio.gather(*map(call, items), return_exceptions=True)
