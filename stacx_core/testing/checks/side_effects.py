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
    before = _states()
    batch = trial.prepare(trial.rows)
    _require_same_states(before, "the stages change")
    trial.subject.step(batch, trial.outputs)
    _require_same_states(before, "the loss changes")


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["NumPy"] = [part.tolist() if hasattr(part, "tolist") else part for part in numpy.random.get_state()]
    return states


def _require_same_states(before: dict[str, Any], who: str) -> None:
    after = _states()
    for name, state in before.items():
        if not equal(state, after[name]):
            raise Wrong(f"{who} the state of the global generator of {name}; use a generator of your own")
