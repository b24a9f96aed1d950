import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from matrix import multiply, transpose


class Matrices(unittest.TestCase):
    def test_transpose(self):
        self.assertEqual(transpose([[1, 2, 3], [4, 5, 6]]), [[1, 4], [2, 5], [3, 6]])
        self.assertEqual(transpose([[1], [2]]), [[1, 2]])
        self.assertEqual(transpose([[1, 2], [3, 4]]), [[1, 3], [2, 4]])

    def test_multiply(self):
        self.assertEqual(multiply([[1, 2]], [[1, 0, 2], [0, 1, 3]]), [[1, 2, 8]])
        self.assertEqual(multiply([[1], [2]], [[3]]), [[3], [6]])

    def test_shapes_that_do_not_fit(self):
        with self.assertRaises(ValueError):
            multiply([[1, 2]], [[1, 2]])
