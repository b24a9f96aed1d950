"""Makes task folders of rows in the style of SWE-bench and SWE-Gym, whose repositories are local."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacx_core.data.sources import read_jsonl
from stacx_core.errors import DataError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
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
cp -R --remove-destination /tests/files/. . || exit 1
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
        DataError: There is no row, one is malformed, its repository, commit or patches cannot be used, or its folder
            is there already. Then nothing is made.
    """
    if not re.fullmatch(r"\S+", image):
        raise DataError(f"{image!r} is no name of an image")
    found = list(read_rows(rows))
    if not found:
        raise DataError(f"{rows} has no rows")
    names = [row.texts["instance_id"] for row in found]
    for row, name in zip(found, names, strict=True):
        if names.count(name) > 1 or (out / name).exists():
            raise DataError(f"{row.where}: there is a task {name!r} already")
    made = list[Path]()
    try:
        for row, name in zip(found, names, strict=True):
            made.append(_make(row, rows.parent, out / name, image, runner))
    except BaseException:
        for folder in made:
            shutil.rmtree(folder)
        raise
    return made


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a JSONL file.

    Raises:
        DataError: A line is no JSON object, or a field is missing or of the wrong kind; names the line.
    """
    for where, row in read_jsonl(file):
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
    if not _is_plain(value):
        raise DataError(f"{where}: {key}: has a zero byte or half a surrogate pair, which is no character")
    return value


def _is_plain(text: str) -> bool:
    return not re.search("[\0\ud800-\udfff]", text)


def _names(row: dict[str, Any], key: str, where: str) -> list[str]:
    value = row.get(key, [])
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            value = None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise DataError(f"{where}: {key}: must be a list of tests, or the JSON of one, not {row[key]!r}")
    for name in value:
        if not name.strip() or name.startswith("-") or "\n" in name or not _is_plain(name):
            raise DataError(f"{where}: {key}: {name!r} is no name of a test")
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
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(part, folder)
        except OSError as error:
            raise DataError(f"{row.where}: {folder} cannot be made: {error.strerror}") from error
    return folder


def _check_out(row: Row, source: Path, target: Path) -> None:
    if not source.exists():
        raise DataError(f"{row.where}: repo: there is no repository or bundle {source}")
    _git(row, None, "clone", "--quiet", "--no-checkout", str(source.resolve()), str(target))
    commit = row.texts["base_commit"]
    try:
        found = _git(row, target, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}").strip()
    except DataError as error:
        raise DataError(f"{row.where}: base_commit: there is no commit {commit!r} in {source}") from error
    _git(row, target, "checkout", "--quiet", "--detach", found)
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
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(["git", *safe, *place, *arguments], input=text.encode(), capture_output=True, env=env)
    except FileNotFoundError as error:
        raise DataError("rows are converted by git, which is not installed", "apt install git") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        line = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1])
        raise DataError(f"{row.where}: git {arguments[0]} of {row.texts['instance_id']} failed: {line}")
    return os.fsdecode(done.stdout)


def _write(folder: Path, name: str, text: str, executable: bool = False) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(os.fsencode(text))
    if executable:
        file.chmod(0o755)
