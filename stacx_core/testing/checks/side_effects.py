"""That stages and losses leave alone what others use: shared inputs and the random numbers of the run."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.snapshots import equal, snapshot
from stacx_core.testing.trial import Trial
from stacx_core.trainer.stages import run_stages, stage_name


@check("main")
def stage_inputs(trial: Trial) -> None:
    """A stage changes no list and no tensor that it was given; it puts new ones in their place.

    Finds: in-place arithmetic on rewards, masks or log-probs, which the other roles share.
    """
    subject = trial.subject
    if not subject.role.prepare:
        raise NotApplicable("the role has no stages")
    batch = subject.batch(trial.rows)
    given = dict(batch)
    before = {key: snapshot(value) for key, value in given.items()}
    for stage in subject.role.prepare:
        run_stages(subject.role, batch, subject.args, (stage,))
        for key, value in given.items():
            if not equal(before[key], value):
                raise Wrong(f"stage {stage_name(stage)} changes the batch key {key!r} in place; work on a copy")


@check("main")
def random_state(trial: Trial) -> None:
    """The global random numbers of torch, Python and NumPy go on after the stages and the loss as before.

    Finds: seeds set in passing, noise from the global generators.
    """
    kept = _states()
    try:
        _draw()
        before = _states()
        batch = trial.prepare(trial.rows)
        _require_same_states(before, "the stages change")
        trial.subject.step(batch, trial.outputs)
        _require_same_states(before, "the loss changes")
    finally:
        _restore(kept)


def _states() -> dict[str, Any]:
    """The state of each global generator that is in use."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "Python's random": random.getstate()}
    if "numpy" in sys.modules:
        states["NumPy"] = sys.modules["numpy"].random.get_state()
    return states


def _draw() -> None:
    """Leave the states that seeds give, in one of which an earlier call may have left a generator."""
    torch.rand(())
    random.random()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.random()


def _restore(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["Python's random"])
    if "NumPy" in states:
        sys.modules["numpy"].random.set_state(states["NumPy"])


def _plain(state: Any) -> Any:
    """The state in a form that can be compared."""
    return [part.tolist() if hasattr(part, "tolist") else part for part in state]


def _require_same_states(before: dict[str, Any], who: str) -> None:
    after = _states()
    for name, state in before.items():
        if _plain(state) != _plain(after[name]):
            raise Wrong(f"{who} the state of the global generator of {name}; use a generator of your own")
