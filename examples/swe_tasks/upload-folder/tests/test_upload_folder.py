import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import os
import tempfile

from uploads import target


class Targets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(os.path.realpath(folder.name), "uploads")
        os.makedirs(self.root)
        os.makedirs(self.root + "-old")

    def test_inside(self):
        self.assertEqual(target(self.root, "x.txt"), os.path.join(self.root, "x.txt"))
        self.assertEqual(target(self.root, "a/../b.txt"), os.path.join(self.root, "b.txt"))

    def test_outside(self):
        for name in ("../uploads-old/x", "../x", "/etc/passwd", "..", ".", ""):
            with self.subTest(name=name), self.assertRaises(ValueError):
                target(self.root, name)

    def test_links_are_followed(self):
        os.symlink(self.root + "-old", os.path.join(self.root, "link"))
        with self.assertRaises(ValueError):
            target(self.root, "link/x")
