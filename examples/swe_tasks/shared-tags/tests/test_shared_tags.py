import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from notes import Note, with_tag


class Tags(unittest.TestCase):
    def test_a_new_note_has_none(self):
        Note("milk").add_tag("shopping")
        self.assertEqual(Note("call home").tags, [])

    def test_a_list_of_the_caller_stays(self):
        mine = ["a"]
        note = Note("x", mine).add_tag("b")
        self.assertEqual(mine, ["a"])
        self.assertEqual(note.tags, ["a", "b"])

    def test_find_by_tag(self):
        first, second = Note("1").add_tag(" Red "), Note("2")
        self.assertEqual(with_tag([first, second], "RED"), [first])
