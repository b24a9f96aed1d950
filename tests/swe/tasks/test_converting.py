"""Task folders out of rows, tried with a repository of two commits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stacx_core.errors import DataError
from stacx_core.swe.oracle import try_out
from stacx_core.swe.tasks import read_tasks
from stacx_core.swe.tasks.converting import convert

TEST = """import unittest

from shop import price


class Price(unittest.TestCase):
    def test_kept(self):
        self.assertEqual(price(1), 10)
"""
NEW_TEST = """
    def test_broken(self):
        self.assertEqual(price(3), 30)
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git there."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def row(tmp_path: Path) -> dict:
    """A row whose repository has a later commit that must not show."""
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "--quiet")
    (repo / "shop.py").write_text("def price(count):\n    return 10\n")
    (repo / "test_shop.py").write_text(TEST)
    (repo / "old_test.py").write_text("x = 1\n")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "first")
    base = git(repo, "rev-parse", "HEAD").strip()
    (repo / "shop.py").write_text("def price(count):\n    return 10 * count\n")
    patch = git(repo, "diff")
    git(repo, "commit", "--quiet", "-am", "fix")
    (repo / "test_shop.py").write_text(TEST + NEW_TEST)
    (repo / "old_test.py").unlink()
    return {
        "instance_id": "shop__shop-1",
        "repo": "repo",
        "base_commit": base,
        "patch": patch,
        "test_patch": git(repo, "diff"),
        "problem_statement": "Three cost as much as one.",
        "FAIL_TO_PASS": json.dumps(["test_shop.Price.test_broken"]),
        "PASS_TO_PASS": ["test_shop.Price.test_kept"],
    }


def write(tmp_path: Path, *rows: dict) -> Path:
    """A file of rows."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_row_becomes_a_sound_task(tmp_path, row, provider):
    (folder,) = convert(write(tmp_path, row), tmp_path / "out", runner="unittest")
    (task,) = read_tasks(tmp_path / "out")
    assert task.name == folder.name == "shop__shop-1"
    assert task.instruction.startswith("Three cost as much as one.")
    assert (folder / "environment" / "repo" / "shop.py").read_text() == "def price(count):\n    return 10\n"
    assert not (folder / "environment" / "repo" / ".git").exists()
    assert "test_broken" not in (folder / "environment" / "repo" / "test_shop.py").read_text()
    assert (folder / "tests" / "removed.txt").read_text() == "old_test.py\n"
    (trial,) = try_out([task], provider)
    assert (trial.oracle, trial.empty, trial.problem) == (1.0, 0.0, "")


def test_a_bundle(tmp_path, row):
    git(tmp_path / "repo", "bundle", "create", "--quiet", str(tmp_path / "shop.bundle"), "--all")
    (folder,) = convert(write(tmp_path, {**row, "repo": "shop.bundle"}), tmp_path / "out")
    assert (folder / "environment" / "repo" / "shop.py").is_file()
    assert "pytest" in (folder / "tests" / "test.sh").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "elsewhere"}, r"rows\.jsonl, line 1: repo: there is no repository or bundle"),
        ({"base_commit": "0" * 40}, r"rows\.jsonl, line 1: base_commit: there is no commit '0{40}' in"),
        ({"patch": "nonsense"}, r"git apply of shop__shop-1 failed"),
        ({"test_patch": None}, r"test_patch: must be a text that is not empty, not None"),
        ({"instance_id": "../x"}, r"instance_id: '\.\./x' is no name of a folder"),
        ({"FAIL_TO_PASS": "x"}, r"FAIL_TO_PASS: must be a list of tests, or the JSON of one, not 'x'"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": "[]"}, r"name no test"),
        ({"FAIL_TO_PASS": ["--version"]}, r"FAIL_TO_PASS: '--version' is no name of a test"),
        ({"FAIL_TO_PASS": [""]}, r"FAIL_TO_PASS: '' is no name of a test"),
        ({"PASS_TO_PASS": ["a\ud800"]}, r"PASS_TO_PASS: 'a\\ud800' is no name of a test"),
        ({"base_commit": "--force"}, r"base_commit: there is no commit '--force'"),
        ({"base_commit": "a\0b"}, r"base_commit: has a zero byte"),
        ({"patch": "\ud800"}, r"patch: has a zero byte or half a surrogate pair"),
        ({"instance_id": "x" * 300}, r"is no name of a folder"),
        ({"repo": "rows.jsonl"}, r"git clone of shop__shop-1 failed: error: .*rows.jsonl' does not look"),
    ],
)
def test_rows_that_are_refused(tmp_path, row, change, message):
    with pytest.raises(DataError, match=message):
        convert(write(tmp_path, {**row, **change}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "has no rows"), (b"\xff", "not UTF-8"), (b"[" * 99999, "not JSON"), (b"[1]", "is no JSON object")],
)
def test_files_without_rows(tmp_path, data, message):
    (tmp_path / "rows.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=message):
        convert(tmp_path / "rows.jsonl", tmp_path / "out")


def test_rows_as_others_write_them(tmp_path, row):
    text = json.dumps({**row, "problem_statement": "one\u2028line\x85"}, ensure_ascii=False)
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    (folder,) = convert(tmp_path / "rows.jsonl", tmp_path / "out")
    assert "one\u2028line" in (folder / "instruction.md").read_text()


def test_all_rows_or_none(tmp_path, row):
    with pytest.raises(DataError, match="line 2"):
        convert(write(tmp_path, row, {**row, "instance_id": "b", "repo": "elsewhere"}), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_place_that_is_no_folder(tmp_path, row):
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match=r"line 1: .*out/shop__shop-1 cannot be made"):
        convert(write(tmp_path, row), tmp_path / "out")


def test_an_image_that_is_none(tmp_path, row):
    with pytest.raises(DataError, match="is no name of an image"):
        convert(write(tmp_path, row), tmp_path / "out", image="a\nRUN b")


def test_the_repository_of_a_hook_is_not_taken(tmp_path, row, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert convert(write(tmp_path, row), tmp_path / "out")


def test_a_task_that_is_there_already(tmp_path, row):
    with pytest.raises(DataError, match="already"):
        convert(write(tmp_path, row, row), tmp_path / "out")
