"""What a rollout was made of: who acted how much, how the episodes came out, and what the teacher cost."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stacx_core import Episode, EpisodeTask
from stacx_plugin_dagger.driving import Driver

OUTCOMES = ("mixed", "pure_student", "full_teacher", "cap_full", "degraded", "aborted")
"""How an episode counts; the first that holds:

- ``degraded``: the teacher failed in a turn that it was asked for;
- ``aborted``: the environment failed, or there was no turn;
- ``cap_full``: the student alone played until a limit of turns or tokens ended the episode;
- ``full_teacher``, ``pure_student``: one of them alone played;
- ``mixed``: both did.
"""

LOG = "roll_in.jsonl"


def outcome_of(episode: Episode, degraded: bool = False) -> str:
    """One of ``OUTCOMES``."""
    if degraded or episode.outcome == "teacher_failed":
        return "degraded"
    if episode.failed or not episode.turns:
        return "aborted"
    actors = {turn.executor for turn in episode.turns}
    if actors == {"teacher"}:
        return "full_teacher"
    if actors == {"student"}:
        return "pure_student" if episode.outcome == "done" else "cap_full"
    return "mixed"


def account(
    driver: Driver,
    tasks: Sequence[EpisodeTask],
    episodes: Sequence[Episode],
    degraded: Sequence[bool],
    **counts: int,
) -> dict[str, Any]:
    """The record of one rollout, as ``roll_in.jsonl`` has it.

    Args:
        driver: of the rollout.
        tasks, episodes: what was asked for and what was played, in the same order.
        degraded: of each episode, whether the teacher failed in it.
        counts: further numbers of tokens or turns, such as ``label_tokens``.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    taught = [turn for turn in turns if turn.executor == "teacher"]
    found = Counter(map(outcome_of, episodes, degraded))
    record: dict[str, Any] = {
        "rollout": driver.rollout,
        "mode": driver.args.dagger_sampling_mode,
        "episodes": len(episodes),
        "turns": len(turns),
        "teacher_turns": len(taught),
        "tokens": sum(len(turn.ids) for turn in turns),
        "teacher_action_tokens": sum(len(turn.ids) for turn in taught),
        **counts,
        "outcomes": {name: found[name] for name in OUTCOMES},
    }
    if record["mode"] == "beta":
        record["beta"] = driver.beta
    if record["mode"] == "aggrevate":
        kappas = Counter(map(driver.kappa, tasks))
        record |= {"kappa_limit": driver.kappa_limit, "kappas": {str(k): kappas[k] for k in sorted(kappas)}}
    return record


def metrics_of(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record that make curves.

    ``teacher_turn_frac`` and ``teacher_token_frac`` are the realised shares; they differ where the teacher writes
    longer turns. ``teacher_tokens`` is what the teacher generated.
    """
    metrics = {
        "teacher_turn_frac": record["teacher_turns"] / max(record["turns"], 1),
        "teacher_token_frac": record["teacher_action_tokens"] / max(record["tokens"], 1),
        "teacher_tokens": float(record["teacher_action_tokens"] + record.get("label_tokens", 0)),
        **{f"outcome_{name}": float(count) for name, count in record["outcomes"].items()},
    }
    metrics |= {name: float(record[name]) for name in ("beta", "kappa_limit", "scored_tokens") if name in record}
    if "kappas" in record:
        metrics["kappa_mean"] = sum(int(k) * n for k, n in record["kappas"].items()) / max(record["episodes"], 1)
    return metrics


class RollInLog:
    """``roll_in.jsonl`` in the folder of the run, one record a line.

    Records of rollouts that a resumed run makes again are replaced.

    Args:
        folder: of the run; None keeps no log.
    """

    def __init__(self, folder: str | None) -> None:
        self.path = Path(folder) / LOG if folder is not None else None
        self._rewound = False

    def write(self, record: dict[str, Any]) -> None:
        """Append a record."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._rewound:
            self._rewind(record["rollout"])
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _rewind(self, rollout: int) -> None:
        """Drop what an interrupted process wrote about this rollout and later ones, and a line that it cut short."""
        assert self.path is not None
        self._rewound = True
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        kept = [line for line in whole if json.loads(line)["rollout"] < rollout]
        if len(kept) < len(lines):
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("".join(kept), encoding="utf-8")
            os.replace(temporary, self.path)
