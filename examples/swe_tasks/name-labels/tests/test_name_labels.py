import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import tempfile
from pathlib import Path

from labels import fit, read_labels


class Labels(unittest.TestCase):
    def test_letters_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "names.txt")
            path.write_bytes("Jürgen\n\n  Zoë \n".encode("utf-8"))
            self.assertEqual(read_labels(path, 20), ["Jürgen", "Zoë"])

    def test_the_field_counts_bytes(self):
        self.assertEqual(fit("éééé", 4), "éé")
        self.assertEqual(fit("plain", 3), "pla")

    def test_never_within_a_letter(self):
        self.assertEqual(fit("aé", 2), "a")
        self.assertEqual(fit("日本", 5), "日")
