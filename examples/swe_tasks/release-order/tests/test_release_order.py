import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from releases import newest_first


class Order(unittest.TestCase):
    def test_versions_are_numbers(self):
        self.assertEqual(newest_first(["app-9.2", "app-10.0", "app-9.10"]), ["app-10.0", "app-9.10", "app-9.2"])

    def test_names_in_alphabetical_order(self):
        found = newest_first(["web-1.0", "App-2.0", "app-3.0", "big-tool-1.1"])
        self.assertEqual(found, ["app-3.0", "App-2.0", "big-tool-1.1", "web-1.0"])
