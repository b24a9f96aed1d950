import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import subprocess
import sys


def greet(*arguments):
    return subprocess.run(
        [sys.executable, "/app/greet.py", *arguments], capture_output=True, text=True, timeout=10
    )


class Greet(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(greet("Ada").stdout, "Hello, Ada!\n")

    def test_shout_is_a_switch(self):
        self.assertEqual(greet("Ada", "--shout").stdout, "HELLO, ADA!\n")
        self.assertEqual(greet("--shout", "Ada").stdout, "HELLO, ADA!\n")

    def test_times(self):
        self.assertEqual(greet("Ada", "--times", "2").stdout, "Hello, Ada!\n" * 2)
        self.assertEqual(greet("Ada", "--times", "two").returncode, 2)
