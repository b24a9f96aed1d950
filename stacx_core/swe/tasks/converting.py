"""Makes task folders of rows in the style of SWE-bench and SWE-Gym, whose repositories are local."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.errors import DataError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TEXTS = ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement")

_TASK_TOML = """version = "1.0"

[metadata]
category = "software-engineering"
source = {source}
base_commit = {commit}

[agent]
timeout_sec = 1800.0

[verifier]
timeout_sec = 1800.0

[environment]
cpus = 1
memory_mb = 2048
storage_mb = 1024
"""
_DOCKERFILE = """FROM {image}
WORKDIR /testbed
COPY repo/ /testbed/
"""
_TEST_SH = """#!/bin/bash
# Writes 1 if every test passes that must, and 0 otherwise, also when the tests cannot start.
mkdir -p /logs/verifier
reward=0
trap 'echo "$reward" > /logs/verifier/reward.txt' EXIT
cd /testbed || exit 1
# The tests are those of the task, whatever the agent made of them.
cp -R /tests/files/. . || exit 1
while IFS= read -r gone; do rm -f -- "$gone"; done < /tests/removed.txt
tests=()
while IFS= read -r name; do tests+=("$name"); done < /tests/tests.txt
{runner} && reward=1
"""
_SOLVE_SH = """#!/bin/bash
set -e
cd /testbed
patch -p1 < "$(dirname "$0")/fix.patch"
"""
RUNNERS = {"pytest": 'python3 -m pytest -q "${tests[@]}"', "unittest": 'python3 -m unittest "${tests[@]}"'}
"""What runs the tests in FAIL_TO_PASS and PASS_TO_PASS, named ``tests``."""


@dataclass(frozen=True)
class Row:
    """One row, checked.

    Args:
        where: File and line, for messages.
        texts: The texts of ``_TEXTS``.
        tests: Names of the tests that must pass afterwards.
    """

    where: str
    texts: dict[str, str]
    tests: tuple[str, ...]


def convert(rows: Path, out: Path, image: str = "python:3.12", runner: str = "pytest") -> list[Path]:
    """Make a task folder of every row.

    Args:
        rows: JSONL file. ``repo`` is the path of a git repository or bundle, relative to the file.
        out: Folder that gets one folder for each row, named by ``instance_id``; none of them may be there.
        image: Image of the Dockerfiles.
        runner: One of ``RUNNERS``.

    Returns:
        The folders that were made.

    Raises:
        DataError: A row is malformed, its repository, commit or patches cannot be used, or its folder is there already.
    """
    found = list(read_rows(rows))
    names = [row.texts["instance_id"] for row in found]
    for row, name in zip(found, names, strict=True):
        if names.count(name) > 1 or (out / name).exists():
            raise DataError(f"{row.where}: there is a task {name!r} already")
    return [_make(row, rows.parent, out / name, image, runner) for row, name in zip(found, names, strict=True)]


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a JSONL file.

    Raises:
        DataError: A line is no JSON object, or a field is missing or of the wrong kind; names the line.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where} is not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where} is no JSON object")
        texts = {key: _text(row, key, where) for key in _TEXTS}
        if not _NAME.fullmatch(texts["instance_id"]):
            raise DataError(f"{where}: instance_id: {texts['instance_id']!r} is no name of a folder")
        tests = (*_names(row, "FAIL_TO_PASS", where), *_names(row, "PASS_TO_PASS", where))
        if not tests:
            raise DataError(f"{where}: FAIL_TO_PASS and PASS_TO_PASS name no test")
        yield Row(where, texts, tests)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key}: must be a text that is not empty, not {value!r}")
    return value


def _names(row: dict[str, Any], key: str, where: str) -> list[str]:
    value = row.get(key, [])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = None
    if not isinstance(value, list) or not all(isinstance(name, str) and "\n" not in name for name in value):
        raise DataError(f"{where}: {key}: must be a list of tests, or the JSON of one, not {row[key]!r}")
    return value


def _make(row: Row, base: Path, folder: Path, image: str, runner: str) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch, "repo")
        _check_out(row, base / row.texts["repo"], repository)
        part = Path(scratch, "task")
        source = part / "environment" / "repo"
        shutil.copytree(repository, source, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        _write(part, "environment/Dockerfile", _DOCKERFILE.format(image=image))
        _write(
            part, "instruction.md", row.texts["problem_statement"].strip() + "\n\nThe repository is in `/testbed`.\n"
        )
        texts = {key: json.dumps(row.texts[key]) for key in ("repo", "base_commit")}
        _write(part, "task.toml", _TASK_TOML.format(source=texts["repo"], commit=texts["base_commit"]))
        _write(part, "tests/test.sh", _TEST_SH.replace("{runner}", RUNNERS[runner]), executable=True)
        _write(part, "tests/tests.txt", "".join(f"{name}\n" for name in row.tests))
        _patched_tests(row, repository, part / "tests")
        _write(part, "solution/solve.sh", _SOLVE_SH, executable=True)
        _write(part, "solution/fix.patch", row.texts["patch"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(part, folder)
    return folder


def _check_out(row: Row, source: Path, target: Path) -> None:
    if not source.exists():
        raise DataError(f"{row.where}: repo: there is no repository or bundle {source}")
    _git(row, None, "clone", "--quiet", "--no-checkout", str(source.resolve()), str(target))
    _git(row, target, "checkout", "--quiet", "--detach", row.texts["base_commit"])
    _git(row, target, "apply", "--check", "-", text=row.texts["patch"])


def _patched_tests(row: Row, repository: Path, tests: Path) -> None:
    """Put the files that the test patch touches, as it leaves them, beside the tests."""
    _git(row, repository, "apply", "--index", "-", text=row.texts["test_patch"])
    changed = _git(row, repository, "diff", "--cached", "--no-renames", "--name-status", "-z", "HEAD").split("\0")
    (tests / "files").mkdir()
    removed = []
    for status, name in zip(changed[::2], changed[1::2], strict=False):
        if status == "D":
            removed.append(name)
            continue
        place = tests / "files" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(repository / name, place, follow_symlinks=False)
    _write(tests, "removed.txt", "".join(f"{name}\n" for name in removed))


def _git(row: Row, folder: Path | None, *arguments: str, text: str = "") -> str:
    place = [] if folder is None else ["-C", str(folder)]
    # The repository's own hooks and filters are somebody else's programs.
    safe = ("-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never")
    done = subprocess.run(["git", *safe, *place, *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise DataError(f"{row.where}: git {arguments[0]} of {row.texts['instance_id']} failed: {lines[-1]}")
    return done.stdout


def _write(folder: Path, name: str, text: str, executable: bool = False) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    if executable:
        file.chmod(0o755)
