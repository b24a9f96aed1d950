import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from settings import parse


class Settings(unittest.TestCase):
    def test_good_ones(self):
        text = "# mine\n\nport = 80\nname = a = b\n"
        self.assertEqual(parse(text), {"port": 80, "name": "a = b"})

    def test_a_line_that_is_no_pair(self):
        with self.assertRaisesRegex(ValueError, r"\b2\b"):
            parse("port = 80\nnonsense\nname = x\n")

    def test_a_number_that_is_none(self):
        with self.assertRaisesRegex(ValueError, r"\b3\b"):
            parse("\n\nworkers = many\n")
