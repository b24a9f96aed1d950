import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import catalogue


class Pages(unittest.TestCase):
    def test_the_last_page_counts(self):
        self.assertEqual(catalogue.page_count(list(range(25)), 10), 3)
        self.assertEqual(catalogue.page_count(list(range(20)), 10), 2)
        self.assertEqual(catalogue.page_count([], 10), 0)

    def test_pages_hold_everything_once(self):
        items = list(range(25))
        pages = [catalogue.page(items, number, 10) for number in (1, 2, 3)]
        self.assertEqual(sum(pages, []), items)

    def test_no_page_beyond_the_last(self):
        with self.assertRaises(IndexError):
            catalogue.page(list(range(25)), 4, 10)
        with self.assertRaises(IndexError):
            catalogue.page(list(range(25)), 0, 10)
