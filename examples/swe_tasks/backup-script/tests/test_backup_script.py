import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

import os
import subprocess
import tempfile


def backup(source, target):
    return subprocess.run(["bash", "/app/backup.sh", source, target], capture_output=True, text=True, timeout=10)


class Backup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source, self.target = os.path.join(folder.name, "my notes"), os.path.join(folder.name, "the copy")
        os.makedirs(self.source)

    def fill(self, *names):
        for name in names:
            with open(os.path.join(self.source, name), "w") as file:
                file.write(name)

    def test_names_with_spaces(self):
        self.fill("a.txt", "shopping list.txt", "picture.png")
        done = backup(self.source, self.target)
        self.assertEqual((done.returncode, done.stdout), (0, "2\n"))
        self.assertEqual(sorted(os.listdir(self.target)), ["a.txt", "shopping list.txt"])

    def test_no_files(self):
        self.assertEqual(backup(self.source, self.target).stdout, "0\n")

    def test_no_folder(self):
        self.assertNotEqual(backup(self.source + "x", self.target).returncode, 0)
