import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import json
import os
import tempfile

from visits.counter import Counter


class Visits(unittest.TestCase):
    def test_counts_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "counts.json")
            first = Counter(path)
            self.assertEqual([first.visit(7), first.visit(7), first.visit(10)], [1, 2, 1])
            again = Counter(path)
            self.assertEqual(again.visit(7), 3)
            self.assertEqual(again.customers(), [7, 10])
            with open(path) as file:
                self.assertEqual(json.load(file), {"7": 3, "10": 1})
