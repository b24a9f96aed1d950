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
from stacx_core.swe.sandboxes.docker_words import one_word, split_words
from stacx_core.swe.tasks.task_file import is_variable, read_text

IGNORED = ("CMD", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL")
SUPPORTED = ("FROM", "WORKDIR", "COPY", "ADD", "ENV", "ARG", "RUN")
HOME = "/home/agent"
SYSTEM_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""Variables of this machine's system, in the place of those of an image."""
_GOES_ON = re.compile(r"(?:^|(?<=[^\\]))\\[ \t]*$")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?['\"]?[A-Za-z_]")
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)")
_FLAG = re.compile(r"--(\S+?)(?:=(\S*))?\s+")


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
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if begun == 0 and (found := _ESCAPE.fullmatch(line.strip())) and found[1] != "\\":
            raise DataError(f"{file}:{number}: the bubblewrap sandbox knows no escape but \\")
        if line.lstrip().startswith("#") or not line.strip():
            continue
        begun = begun if parts else number
        parts.append(_GOES_ON.sub("", line))
        if parts[-1] == line:
            yield begun, "".join(parts).strip()
            parts = []
    if parts:
        yield begun, "".join(parts).strip()


class _Reader:
    """Follows one instruction after another."""

    def __init__(self, file: Path) -> None:
        self._file, self._arguments, self._images = file, dict[str, str](), 0
        self.recipe = Recipe()

    def take(self, line: int, text: str) -> None:
        """Follow an instruction."""
        name, *after = text.split(None, 1)
        name, rest = name.upper(), "".join(after)
        if name in IGNORED:
            return
        if name not in SUPPORTED:
            raise self._refusal(line, name, f"it follows {', '.join(SUPPORTED)} and ignores {', '.join(IGNORED)}")
        if name in ("RUN", "COPY", "ADD") and _HERE_DOCUMENT.search(rest):
            raise self._refusal(line, f"{name} with a here-document", "put the text into a file and COPY it")
        try:
            getattr(self, f"_{name.lower()}")(line, rest)
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise self._refusal(line, f"{name} {rest}", str(error)) from error

    def _from(self, line: int, _: str) -> None:
        self._images += 1
        if self._images > 1:
            raise self._refusal(line, "a second FROM", "an environment has one stage")

    def _workdir(self, line: int, rest: str) -> None:
        folder = one_word(rest, self._known)
        if not folder:
            raise self._refusal(line, f"WORKDIR {rest}".strip(), "it names no folder")
        self.recipe = replace(self.recipe, workdir=self._absolute(folder))

    def _env(self, line: int, rest: str) -> None:
        name, *value = rest.split(None, 1) or [""]
        words = split_words(rest, self._known) if "=" in name else [f"{name}={one_word(''.join(value), self._known)}"]
        given = dict(word.partition("=")[::2] for word in words)
        if wrong := [name for name in given if not is_variable(name)]:
            raise self._refusal(line, f"ENV {rest}", f"{wrong[0]!r} is no name of a variable")
        self.recipe = replace(self.recipe, env={**self.recipe.env, **given})

    def _arg(self, line: int, rest: str) -> None:
        for word in split_words(rest, self._known):
            name, given, value = word.partition("=")
            if not is_variable(name):
                raise self._refusal(line, f"ARG {rest}", f"{name!r} is no name of a variable")
            # Without a value it is what it was before FROM.
            self._arguments[name] = value if given else self._arguments.get(name, "")

    def _run(self, line: int, rest: str) -> None:
        if rest.startswith("--"):
            raise self._refusal(line, f"RUN {rest.split()[0]}", "RUN takes no flags here")
        if (words := self._list(line, "RUN", rest)) is not None:
            rest = shlex.join(words)
        step = Run(rest, self.recipe.workdir, {**self._arguments, **self.recipe.env})
        self.recipe = replace(self.recipe, steps=(*self.recipe.steps, step))

    def _copy(self, line: int, rest: str, name: str = "COPY") -> None:
        mode = None
        while found := _FLAG.match(rest):
            rest = rest[found.end() :]
            if found[1] == "chmod" and re.fullmatch("[0-7]{3,4}", found[2] or ""):
                mode = int(found[2], 8)
            elif found[1] not in ("chown", "link"):  # there is one user in a sandbox, and nothing to link to
                raise self._refusal(line, f"{name} {found[0].strip()}", "it takes --chmod=MODE, --chown and --link")
        listed = self._list(line, name, rest)
        words = split_words(rest, self._known) if listed is None else [one_word(word, self._known) for word in listed]
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

    def _list(self, line: int, name: str, text: str) -> list[str] | None:
        """The list of a text that is one; else it is for the shell."""
        try:
            words = json.loads(text) if text.startswith("[") else None
        except ValueError:
            words = None
        if words is not None and not all(isinstance(word, str) for word in words):
            raise self._refusal(line, f"{name} {text}", 'a list is written as JSON, such as ["a", "b"]')
        return words

    def _absolute(self, path: str) -> str:
        # POSIX keeps two slashes at the beginning of a path.
        return "/" + posixpath.normpath(posixpath.join(self.recipe.workdir, path)).lstrip("/")

    @property
    def _known(self) -> dict[str, str]:
        return {**SYSTEM_ENV, **self._arguments, **self.recipe.env}

    def _refusal(self, line: int, what: str, hint: str) -> DataError:
        return DataError(f"{self._file}:{line}: the bubblewrap sandbox cannot follow {what}", hint)
