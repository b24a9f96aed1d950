"""A corpus of episodes on disk: JSONL shards with token ids, and a manifest that makes it one."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.data.sample import Sample, SampleStatus
from stacx_core.errors import ConfigError, DataError
from stacx_core.rollout.episodes import Episode

MANIFEST = "manifest.json"
SETTINGS = "settings.json"
KIND = "stacx episodes"
SHARD = re.compile(r"episodes_(\d+)-(\d+)\.jsonl")
_STORED = ("tokens", "response_length", "response", "loss_mask", "executor", "turn_ids", "reward", "task_id")

Unit = tuple[Sample, ...]
"""The samples of one episode."""


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what decides the ids of a conversation: the vocabulary, the end token and the chat template."""
    parts = [sorted(tokenizer.get_vocab().items()), tokenizer.eos_token_id, getattr(tokenizer, "chat_template", None)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_corpus(source: str) -> bool:
    """Whether the path is a folder that a :class:`CorpusWriter` began."""
    return (Path(source) / SETTINGS).is_file()


class CorpusWriter:
    """Writes a corpus shard by shard; one that was interrupted goes on behind its last whole shard.

    Args:
        folder: made when missing.
        settings: whatever the episodes depend on; a corpus holds episodes of one setting.

    Raises:
        ConfigError: the folder has episodes of other settings, or holds something else.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / SETTINGS
        if path.exists():
            _same_settings(folder, json.loads(path.read_text(encoding="utf-8")), settings)
        elif others := [child.name for child in folder.iterdir() if not child.name.startswith(".")]:
            raise ConfigError(f"{folder} is not empty (it has {others[0]}) and is no corpus; choose another folder")
        else:
            _write(path, json.dumps(dict(settings), indent=1) + "\n")

    @property
    def done(self) -> int:
        """Episodes on disk, failed ones included."""
        return max((int(last) + 1 for _, last in _shards(self.folder).values()), default=0)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Write the next episodes as one shard, wholly or not at all. Failed ones are counted and not kept."""
        first = self.done
        lines = [
            json.dumps(record)
            for number, episode in enumerate(episodes, start=first)
            for record in _records(number, episode)
        ]
        name = f"episodes_{first:06}-{first + len(episodes) - 1:06}.jsonl"
        _write(self.folder / name, "".join(line + "\n" for line in lines))

    def finish(self) -> dict[str, Any]:
        """Write the manifest and return it."""
        shards = sorted(_shards(self.folder))
        records = [record for name in shards for record in _read(self.folder / name)]
        kept = {record["episode"]: record for record in records}.values()
        manifest = {
            "kind": KIND,
            "episodes": len(kept),
            "failed": self.done - len(kept),
            "samples": len(records),
            "trained_tokens": sum(sum(record["loss_mask"]) for record in records),
            "reward_mean": sum(record["reward"] for record in kept) / max(len(kept), 1),
            "outcomes": Counter(record["outcome"] for record in kept),
            "settings": json.loads((self.folder / SETTINGS).read_text(encoding="utf-8")),
            "shards": {name: _digest(self.folder / name) for name in shards},
        }
        _write(self.folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        return manifest


def read_corpus(folder: str, tokenizer: PreTrainedTokenizerBase) -> list[Unit]:
    """The episodes of a corpus, in order, as samples.

    Args:
        folder: of a finished corpus.
        tokenizer: of the policy; the corpus must have been written with the same.

    Raises:
        DataError: it is unfinished, damaged, empty, or of another tokenizer.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} is no finished corpus: it has no {MANIFEST}", "run the same `stacx collect` again to complete it"
        )
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if manifest["settings"]["tokenizer"] != tokenizer_fingerprint(tokenizer):
        raise DataError(
            f"{folder} was collected with another tokenizer or chat template than --hf-checkpoint has",
            "its token ids would mean something else; collect it anew with this checkpoint",
        )
    units: defaultdict[int, list[Sample]] = defaultdict(list)
    count = 0
    for name, digest in manifest["shards"].items():
        shard = Path(folder) / name
        if not shard.is_file() or _digest(shard) != digest:
            raise DataError(f"{shard} is missing or was changed since the corpus was finished")
        for record in _read(shard):
            units[record["episode"]].append(_sample(record, count))
            count += 1
    if not units:
        raise DataError(f"{folder} has no episode to learn from")
    return [tuple(unit) for _, unit in sorted(units.items())]


def _records(number: int, episode: Episode) -> Iterator[dict[str, Any]]:
    for sample in episode.samples(number, 0):
        if not sample.removed:
            stored = {name: getattr(sample, name) for name in _STORED}
            yield {"episode": number, "seed": episode.seed, "outcome": episode.outcome, **stored}


def _sample(record: Mapping[str, Any], index: int) -> Sample:
    stored = {name: record[name] for name in _STORED}
    done = record["outcome"] == "done"
    return Sample(
        group_index=record["episode"],
        index=index,
        metadata={"outcome": record["outcome"]},
        status=SampleStatus.COMPLETED if done else SampleStatus.TRUNCATED,
        **stored,
    )


def _shards(folder: Path) -> dict[str, tuple[str, str]]:
    """Name of each shard -> its first and last episode."""
    matches = ((path.name, SHARD.fullmatch(path.name)) for path in folder.iterdir())
    return {name: (match[1], match[2]) for name, match in matches if match}


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _same_settings(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in [*wanted, *there]:
        if there.get(name) != wanted.get(name):
            raise ConfigError(
                f"{folder} has episodes with {name} {there.get(name)!r}, and this command asks for "
                f"{wanted.get(name)!r}; choose another --output-dir, or the settings it began with"
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    """Put the file in place whole."""
    temporary = path.with_name("." + path.name)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
