"""The Dockerfile of a task, as far as it can be followed without a container engine."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from stacx_core.errors import DataError

IGNORED = ("CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL")
SUPPORTED = ("FROM", "WORKDIR", "COPY", "ADD", "ENV", "ARG", "RUN")
_VARIABLE = re.compile(r"\\\$|\$(\w+)|\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class Copy:
    """Copies files of the task into the sandbox.

    Args:
        sources: Paths or patterns relative to the folder ``environment``.
        target: Absolute path.
        into: Whether the target is a folder in any case.
        mode: Permissions, or None for those of the files.
        line: Of the Dockerfile.
    """

    sources: tuple[str, ...]
    target: str
    into: bool
    mode: int | None
    line: int


@dataclass(frozen=True)
class Run:
    """Runs a command in a folder, with variables."""

    command: str
    cwd: str
    env: dict[str, str]


@dataclass(frozen=True)
class Recipe:
    """How an environment is made, and the folder and variables that commands start with."""

    steps: tuple[Copy | Run, ...] = ()
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)


def read_dockerfile(file: Path) -> Recipe:
    """Read a Dockerfile; its image is taken to be this machine's own system.

    Raises:
        DataError: It has something that only a container engine can do; names the line and the instruction.
    """
    reader = _Reader(file)
    for line, text in _instructions(file):
        reader.take(line, text)
    return reader.recipe


def _instructions(file: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of each instruction, its continuation lines joined."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not parts):
            continue
        begun = begun if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            yield begun, " ".join(parts).strip()
            parts = []
    if parts:
        yield begun, " ".join(parts).strip()


class _Reader:
    """Follows one instruction after another."""

    def __init__(self, file: Path) -> None:
        self._file, self._arguments, self._images = file, dict[str, str](), 0
        self.recipe = Recipe()

    def take(self, line: int, text: str) -> None:
        """Follow an instruction."""
        name, _, rest = text.partition(" ")
        name, rest = name.upper(), rest.strip()
        if name in IGNORED:
            return
        if name not in SUPPORTED:
            raise self._refusal(line, name, f"it follows {', '.join(SUPPORTED)} and ignores {', '.join(IGNORED)}")
        if "<<" in rest and name in ("RUN", "COPY", "ADD") and re.search(r"<<-?['\"]?\w", rest):
            raise self._refusal(line, f"{name} with a here-document", "put the text into a file and COPY it")
        getattr(self, f"_{name.lower()}")(line, rest)

    def _from(self, line: int, _: str) -> None:
        self._images += 1
        if self._images > 1:
            raise self._refusal(line, "a second FROM", "an environment has one stage")

    def _workdir(self, line: int, rest: str) -> None:
        folder = self._absolute(self._filled(rest))
        self.recipe = replace(self.recipe, workdir=folder)

    def _env(self, line: int, rest: str) -> None:
        words = shlex.split(rest)
        if words and "=" not in words[0]:
            words = [f"{words[0]}={rest.partition(' ')[2].strip()}"]
        given = dict(word.partition("=")[::2] for word in words)
        self.recipe = replace(self.recipe, env={**self.recipe.env, **{k: self._filled(v) for k, v in given.items()}})

    def _arg(self, line: int, rest: str) -> None:
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            self._arguments[name] = self._filled(value)

    def _run(self, line: int, rest: str) -> None:
        if rest.startswith("--"):
            raise self._refusal(line, f"RUN {rest.split()[0]}", "RUN takes no flags here")
        if rest.startswith("["):
            rest = shlex.join(self._list(line, "RUN", rest))
        step = Run(rest, self.recipe.workdir, {**self._arguments, **self.recipe.env})
        self.recipe = replace(self.recipe, steps=(*self.recipe.steps, step))

    def _copy(self, line: int, rest: str, name: str = "COPY") -> None:
        words, mode = rest.split(" "), None
        words = [word for word in words if word]
        while words and words[0].startswith("--"):
            flag, _, value = words.pop(0).partition("=")
            if flag == "--chmod" and re.fullmatch("[0-7]{3,4}", value):
                mode = int(value, 8)
            elif flag != "--chown":  # there is one user in a sandbox
                raise self._refusal(line, f"{name} {flag}={value}", "it takes --chmod=MODE and --chown")
        rest = " ".join(words)
        words = self._list(line, name, rest) if rest.startswith("[") else shlex.split(rest)
        words = [self._filled(word) for word in words]
        if len(words) < 2:
            raise self._refusal(line, f"{name} {rest!r}", "it names at least one source and a target")
        *sources, target = words
        if remote := [source for source in sources if re.match(r"\w+://|git@", source)]:
            raise self._refusal(line, f"{name} of {remote[0]}", "a sandbox has no network")
        into = len(sources) > 1 or target.endswith(("/", "/.")) or target == "."
        into = into or self._absolute(target) == self.recipe.workdir
        step = Copy(tuple(sources), self._absolute(target), into, mode, line)
        self.recipe = replace(self.recipe, steps=(*self.recipe.steps, step))

    def _add(self, line: int, rest: str) -> None:
        archives = [word for word in rest.split()[:-1] if re.search(r"\.(tar|tgz|tar\.\w+)\W*$", word)]
        if archives:
            raise self._refusal(line, f"ADD of the archive {archives[0]}", "put the files in and COPY them")
        self._copy(line, rest, "ADD")

    def _list(self, line: int, name: str, text: str) -> list[str]:
        try:
            words = json.loads(text)
        except json.JSONDecodeError:
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise self._refusal(line, f"{name} {text}", 'a list is written as JSON, such as ["a", "b"]')
        return words

    def _absolute(self, path: str) -> str:
        # POSIX keeps two slashes at the beginning of a path.
        return "/" + posixpath.normpath(posixpath.join(self.recipe.workdir, path)).lstrip("/")

    def _filled(self, text: str) -> str:
        known = {**self._arguments, **self.recipe.env}

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return known.get(name) or found[3] or "" if name else "$"

        return _VARIABLE.sub(value, text)

    def _refusal(self, line: int, what: str, hint: str) -> DataError:
        return DataError(f"{self._file}:{line}: the bubblewrap sandbox cannot follow {what}", hint)
