"""`stacx collect` and the replay of what it collected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

Collect = Callable[..., list[str]]


@pytest.fixture
def collect(checkpoint: Path, game: Any, tmp_path: Path) -> Collect:
    """The arguments of a collection in the game."""

    def build(count: int, *further: str | Path, output: str = "corpus") -> list[str]:
        given = ["collect", "--hf-checkpoint", checkpoint, "--environment", "counting_game:Counting"]
        given += ["--teacher", "counting_game:expert", "--num-episodes", count, "--output-dir", tmp_path / output]
        given += ["--episodes-per-shard", "4", "--rollout-max-response-len", "3"]
        return [str(argument) for argument in (*given, *further)]

    return build


def shards(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("*.jsonl"))}


def test_a_corpus_has_the_ids_of_the_teacher(stacx: Any, collect: Collect, checkpoint: Path, tmp_path: Path) -> None:
    done = stacx(*collect(6))
    assert done.code == 0, done.err
    assert done.out == f"{tmp_path}/corpus\n"
    files = shards(tmp_path / "corpus")
    assert list(files) == ["episodes_000000-000003.jsonl", "episodes_000004-000005.jsonl"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    for line in "".join(files.values()).splitlines():
        record = json.loads(line)
        first = int(tokenizer.decode(record["tokens"][0]))
        digits = [first, (first + 3) % 9, (first + 6) % 9]
        assert tokenizer.decode(record["tokens"]) == "".join(f"{d}?{d + 1}<end>" for d in digits)
        assert record["loss_mask"] == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]
        assert (record["reward"], record["outcome"]) == (1.0, "done")
    manifest = json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert (manifest["episodes"], manifest["failed"], manifest["trained_tokens"]) == (6, 0, 36)


def test_it_goes_on_where_it_was_killed(stacx: Any, child: Any, collect: Collect, options: Any, tmp_path: Path) -> None:
    """Twelve steps of the environment a shard: the 20th is in the second."""
    assert child(*collect(10, output="broken"), FATAL_CALL="20").returncode < 0
    assert list(shards(tmp_path / "broken")) == ["episodes_000000-000003.jsonl"]
    refused = stacx(*replay(options, tmp_path / "broken"))
    assert refused.code == 2
    assert "is no finished corpus: it has no manifest.json" in refused.err
    assert stacx(*collect(10, output="broken")).code == 0
    assert stacx(*collect(10)).code == 0
    assert shards(tmp_path / "broken") == shards(tmp_path / "corpus")


def test_it_grows_and_only_with_the_same_settings(stacx: Any, collect: Collect, tmp_path: Path) -> None:
    assert stacx(*collect(6)).code == 0
    before = shards(tmp_path / "corpus")
    assert stacx(*collect(9)).code == 0
    after = shards(tmp_path / "corpus")
    assert {name: after[name] for name in before} == before
    assert list(after)[-1] == "episodes_000006-000008.jsonl"
    assert stacx(*collect(9)).code == 0
    assert shards(tmp_path / "corpus") == after
    refused = stacx(*collect(12, "--seed", "5"))
    assert refused.code == 2
    assert "has episodes with seed 1234, and this command asks for 5" in refused.err


def replay(options: Any, corpus: Path, *further: str, output: str = "replayed") -> list[str]:
    flags = ["--dagger-sft-mode", "trajectory", "--iter-sft-corpus-dir", corpus, "--num-rollout", "3"]
    given = options("online_dagger", *flags, "--n-samples-per-prompt", "1", *further, output=output)
    place = given.index("--environment")
    return [*given[:place], *given[place + 2 :]]


def test_the_replay_is_fine_tuning_on_the_corpus(
    stacx: Any, collect: Collect, options: Any, lines_of: Any, tmp_path: Path
) -> None:
    assert stacx(*collect(6)).code == 0
    done = stacx(*replay(options, tmp_path / "corpus"))
    assert done.code == 0, done.err
    tuned = replay(options, tmp_path / "corpus", output="tuned")
    place = tuned.index("--dagger-sft-mode")
    tuned[place : place + 4] = ["--prompt-data", str(tmp_path / "corpus")]
    tuned[tuned.index("online_dagger")] = "sft"
    assert stacx(*tuned).code == 0
    first, second = (lines_of(tmp_path / name) for name in ("replayed", "tuned"))
    assert first == second
    assert first[0]["rollout/loss_tokens"] == 4 * 6


def test_a_corpus_of_another_tokenizer_is_refused(
    stacx: Any, collect: Collect, options: Any, checkpoint: Path, save_tokenizer: Any, tmp_path: Path
) -> None:
    assert stacx(*collect(4)).code == 0
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    save_tokenizer(other, reverse=True)
    refused = stacx(*replay(options, tmp_path / "corpus", "--hf-checkpoint", str(other)))
    assert refused.code == 2
    assert "was collected with another tokenizer or chat template" in refused.err


def test_a_corpus_that_was_changed_is_refused(stacx: Any, collect: Collect, options: Any, tmp_path: Path) -> None:
    assert stacx(*collect(4)).code == 0
    shard = tmp_path / "corpus" / "episodes_000000-000003.jsonl"
    shard.write_text(shard.read_text().replace('"reward": 1.0', '"reward": 0.0'))
    refused = stacx(*replay(options, tmp_path / "corpus"))
    assert refused.code == 2
    assert "was changed since the corpus was finished" in refused.err


def test_a_folder_with_something_else_is_left_alone(stacx: Any, collect: Collect, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "thesis.txt").write_text("mine")
    refused = stacx(*collect(4))
    assert refused.code == 2
    assert "is not empty (it has thesis.txt) and is no corpus" in refused.err


@pytest.mark.parametrize("missing", ["--teacher", "--num-episodes"])
def test_what_a_collection_needs(stacx: Any, collect: Collect, missing: str) -> None:
    arguments = collect(4)
    place = arguments.index(missing)
    refused = stacx(*arguments[:place], *arguments[place + 2 :])
    assert refused.code == 2
    assert f"stacx collect needs {missing}" in refused.err
