import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import asyncio

from feed import Source, lowest_price


class Feed(unittest.TestCase):
    def test_the_lowest(self):
        sources = [Source({"tea": 4}), Source({"tea": 3, "rice": 2})]
        self.assertEqual(asyncio.run(lowest_price(sources, "tea")), 3)

    def test_sources_without_it_are_left_out(self):
        sources = [Source({"tea": 4}), Source({"rice": 2})]
        self.assertEqual(asyncio.run(lowest_price(sources, "rice")), 2)

    def test_nobody_has_it(self):
        self.assertIsNone(asyncio.run(lowest_price([Source({})], "salt")))
