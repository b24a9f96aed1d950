import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from lookup import find

PAIRS = [(number, str(number)) for number in range(0, 40, 2)]


class Find(unittest.TestCase):
    def test_every_key(self):
        self.assertEqual([find(PAIRS, key) for key, _ in PAIRS], [value for _, value in PAIRS])

    def test_keys_that_are_not_there(self):
        for key in (-1, 1, 7, 41):
            self.assertIsNone(find(PAIRS, key))
        self.assertIsNone(find([], 1))
