"""Words of a Dockerfile: quotes are taken off, and variables are filled in.

Source: the Dockerfile reference, "Environment replacement", and the lexer of BuildKit, which differs from a shell's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHOICE = re.compile(r"(:?)([-+])")


def split_words(text: str, known: Mapping[str, str]) -> list[str]:
    """The words of a text.

    Raises:
        ValueError: A quote or a brace has no end, or a variable is changed in a way that is not known.
    """
    return _Lexer(text, known).words(split=True)


def one_word(text: str, known: Mapping[str, str]) -> str:
    """A text whose blanks do not end words. Raises as ``split_words``."""
    return "".join(_Lexer(text, known).words(split=False))


class _Lexer:
    """Goes through a text once."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self._text, self._known, self._place = text, known, 0

    def words(self, split: bool) -> list[str]:
        found, word, begun = list[str](), "", False
        while self._place < len(self._text):
            letter = self._text[self._place]
            if split and letter.isspace():
                found += [word] * begun
                word, begun = "", False
                self._place += 1
                continue
            begun = begun or letter in "'\""
            word += self._piece(letter)
            begun = begun or word != ""
        return [*found, word] if begun else found

    def _piece(self, letter: str) -> str:
        if letter == "'":
            return self._until("'", self._place + 1)
        if letter == '"':
            return self._quoted()
        if letter == "$":
            return self._variable()
        if letter == "\\":
            self._place += 1
            letter = self._text[self._place : self._place + 1]
        self._place += 1
        return letter

    def _until(self, mark: str, begin: int) -> str:
        end = self._text.find(mark, begin)
        if end < 0:
            raise ValueError(f"{mark} has no end")
        self._place = end + 1
        return self._text[begin:end]

    def _quoted(self) -> str:
        self._place += 1
        inside = ""
        while (letter := self._text[self._place : self._place + 1]) != '"':
            if not letter:
                raise ValueError('" has no end')
            if letter == "$":
                inside += self._variable()
                continue
            if letter == "\\" and self._text[self._place + 1 : self._place + 2] in ('"', "$", "\\"):
                self._place += 1
                letter = self._text[self._place]
            inside += letter
            self._place += 1
        self._place += 1
        return inside

    def _variable(self) -> str:
        begin = self._place + 1
        if found := _NAME.match(self._text, begin):
            self._place = found.end()
            return self._known.get(found[0], "")
        if not self._text.startswith("{", begin):
            self._place = begin
            return "$"
        return self._chosen(self._braces(begin))

    def _braces(self, begin: int) -> str:
        """What is between the brace there and the one that closes it."""
        depth = 0
        for place in range(begin, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[place], 0)
            if depth == 0:
                self._place = place + 1
                return self._text[begin + 1 : place]
        raise ValueError("${ has no end")

    def _chosen(self, inside: str) -> str:
        found = _NAME.match(inside)
        name, rest = (found[0], inside[found.end() :]) if found else ("", inside)
        choice = _CHOICE.match(rest)
        if not name or (rest and not choice):
            raise ValueError(f"${{{inside}}} is no variable, or one that is changed in a way that is not known")
        value = self._known.get(name, "")
        if not choice:
            return value
        there = bool(value) if choice[1] else name in self._known
        other = one_word(rest[choice.end() :], self._known)
        return {"-": value if there else other, "+": other if there else ""}[choice[2]]
