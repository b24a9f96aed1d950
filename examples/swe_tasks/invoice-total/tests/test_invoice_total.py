import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from invoice import summary


class Summary(unittest.TestCase):
    def test_none(self):
        self.assertEqual(summary([]), {"total": 0, "largest": 0, "smallest": 0})

    def test_one(self):
        self.assertEqual(summary([("pen", 120)]), {"total": 120, "largest": 120, "smallest": 120})

    def test_several(self):
        positions = [("pen", 120), ("voucher", -50), ("book", 999)]
        self.assertEqual(summary(positions), {"total": 1069, "largest": 999, "smallest": -50})
