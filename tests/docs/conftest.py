"""The pages of the documentation, and what is fenced in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the file that the comment above it says it is from."""

    language: str
    text: str
    source: str


@dataclass(frozen=True)
class Page:
    """A Markdown file that people wrote."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[Block]:
        """The fenced blocks in a language."""
        found = re.findall(r"(?:^<!-- from (\S+) -->\n)?^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)
        return [Block(kind, text, source) for source, kind, text in found if kind == language]


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    """Every page but the generated reference."""
    patterns = ("*.md", "docs/*.md", "docs/[!r]*/*.md", "plugins/*/README.md", "examples/*/README.md")
    return [Page(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@pytest.fixture(scope="session")
def readme() -> Page:
    return Page(ROOT / "README.md")
