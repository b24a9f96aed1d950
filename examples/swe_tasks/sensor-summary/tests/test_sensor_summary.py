import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from sensors import readings, summary


class Summary(unittest.TestCase):
    def test_a_generator(self):
        found = summary(readings(["1.0", "", "2.0", "6.0"]))
        self.assertEqual(found, {"count": 3, "average": 3.0, "highest": 6.0})

    def test_a_list(self):
        self.assertEqual(summary([2, 4]), {"count": 2, "average": 3.0, "highest": 4})

    def test_only_negative_values(self):
        self.assertEqual(summary(iter([-3.0, -1.0]))["highest"], -1.0)

    def test_nothing(self):
        self.assertEqual(summary(iter([])), {"count": 0, "average": 0.0, "highest": 0.0})

    def test_values_are_not_kept(self):
        self.assertEqual(summary(float(number) for number in range(100_000))["count"], 100_000)
