import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from ledger import first_imbalance, is_balanced


class Ledger(unittest.TestCase):
    def test_rounding_does_not_matter(self):
        self.assertTrue(is_balanced([0.1, 0.2, -0.3]))
        self.assertTrue(is_balanced([1e9, 0.1, -1e9, -0.1]))
        self.assertTrue(is_balanced([]))

    def test_a_cent_matters(self):
        self.assertFalse(is_balanced([0.1, 0.2, -0.31]))
        self.assertFalse(is_balanced([-0.01]))

    def test_pages(self):
        self.assertEqual(first_imbalance([[0.1, 0.2, -0.3], [1.0]]), 1)
        self.assertIsNone(first_imbalance([[0.7, 0.1, -0.8]]))
