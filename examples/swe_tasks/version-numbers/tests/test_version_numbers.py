import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from versions import parse


class Versions(unittest.TestCase):
    def test_good_ones(self):
        self.assertEqual(parse("1.2.3"), (1, 2, 3, None))
        self.assertEqual(parse("10.20.30"), (10, 20, 30, None))
        self.assertEqual(parse("1.2.3-rc1"), (1, 2, 3, "rc1"))

    def test_bad_ones(self):
        for text in ("1x2y3", "1.2", "1.2.3.4", "v1.2.3", "1.2.3-", "1.2.3\n", "1.2.3-rc 1", ""):
            with self.subTest(text=text), self.assertRaises(ValueError):
                parse(text)
