"""The command ``stacx tasks``."""

from __future__ import annotations

import json

from stacx_core.cli import main


def test_list(make_task, capsys):
    task = make_task()
    assert main(["tasks", "list", str(task.folder.parent)]) == 0
    assert "sum   yes       30       20          1     256         64           Write 1 into score.txt." in (
        capsys.readouterr().out
    )
    assert main(["tasks", "list", str(task.folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["memory_mb"]) == ("sum", 256)


def test_dates_of_a_task_are_listed(make_task, capsys):
    task = make_task()
    with (task.folder / "task.toml").open("a") as file:
        file.write("[metadata]\nmade = 2026-01-31\nat = [2026-01-31T10:00:00Z, 10:00:00]\n")
    assert main(["tasks", "list", str(task.folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["metadata"] == {"made": "2026-01-31", "at": ["2026-01-31 10:00:00+00:00", "10:00:00"]}


def test_check(provider, make_task, capsys):
    task = make_task()
    assert main(["tasks", "check", str(task.folder)]) == 0
    assert capsys.readouterr().out == "1 tasks are well-formed\n"
    make_task(dockerfile="FROM x\nUSER me\n")
    assert main(["tasks", "check", str(task.folder)]) == 2
    assert "cannot follow USER" in capsys.readouterr().err
    assert main(["tasks", "check", str(task.folder), "--sandbox", "nothing"]) == 2


def test_run_oracle(provider, make_task, capsys):
    assert main(["tasks", "run-oracle", str(make_task().folder), "--jobs", "2"]) == 0
    assert "1 of 1 tasks are sound" in capsys.readouterr().out
    task = make_task(test="mkdir -p /logs/verifier; echo 0.5 > /logs/verifier/reward.txt")
    assert main(["tasks", "run-oracle", str(task.folder), "--json"]) == 1
    (trial,) = json.loads(capsys.readouterr().out)
    assert (trial["oracle"], trial["empty"], trial["sound"]) == (0.5, 0.5, False)


def test_convert_names_the_line(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("\n[]\n")
    assert main(["tasks", "convert", str(tmp_path / "rows.jsonl"), str(tmp_path / "out")]) == 2
    assert "rows.jsonl, line 2 is no JSON object" in capsys.readouterr().err
