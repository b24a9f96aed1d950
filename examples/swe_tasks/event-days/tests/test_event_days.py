import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from calendar_days import by_day, utc_day


class Days(unittest.TestCase):
    def test_offsets_move_the_day(self):
        self.assertEqual(utc_day("2024-03-01T23:30:00-05:00"), "2024-03-02")
        self.assertEqual(utc_day("2024-03-01T00:30:00+02:00"), "2024-02-29")

    def test_no_offset_is_utc(self):
        self.assertEqual(utc_day("2024-03-01T23:30:00"), "2024-03-01")

    def test_groups(self):
        events = [("a", "2024-03-01T23:30:00-05:00"), ("b", "2024-03-02T01:00:00+00:00"), ("c", "2024-03-02T23:00:00")]
        self.assertEqual(by_day(events), {"2024-03-02": ["a", "b", "c"]})
