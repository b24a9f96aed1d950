"""Asks several sources for a price."""

import asyncio


class Source:
    """A table of prices that takes a moment to answer."""

    def __init__(self, prices):
        self._prices = prices

    async def price(self, item):
        await asyncio.sleep(0)
        if item not in self._prices:
            raise LookupError(item)
        return self._prices[item]


async def ask(source, item):
    """The price of one source, or None if it has none."""
    try:
        return source.price(item)
    except LookupError:
        return None


async def lowest_price(sources, item):
    """The lowest price of all sources, or None if no source has one."""
    answers = await asyncio.gather(*(ask(source, item) for source in sources))
    return min((answer for answer in answers if answer is not None), default=None)
