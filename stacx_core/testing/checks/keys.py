"""Who reads and who writes which key of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.data.batch import Batch, validate_batch
from stacx_core.errors import StacxError
from stacx_core.testing.results import NO_LOSS, NotApplicable, Wrong, check
from stacx_core.testing.subject import Probe, Returned, Subject
from stacx_core.testing.trial import Trial
from stacx_core.trainer.stages import stage_name


def always_there(config: TrainingConfig) -> set[str]:
    """Keys of every batch, which need no declaration."""
    made = {name for name, key in config.batch_keys.items() if key.producer in ("conversion", "packing")}
    return made | {"metadata", "source_names", *(role.inputs_key for role in config.roles)}


class RecordingBatch(dict[str, Any]):
    """A batch that notes which keys are read; asking whether a key is there is no read."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        super().__init__(batch)
        self.read: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        self.read[key] = None
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value and note the read if it is there."""
        if key not in self:
            return default
        return self[key]


class RecordingProbe(Probe):
    """Hands the loss a recording batch; `read` holds what all calls read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, None] = {}

    def compute_loss(self, **inputs: Any) -> Returned:
        """Call the hook with a recording batch."""
        recording = RecordingBatch(inputs.pop("batch"))
        try:
            return super().compute_loss(batch=recording, **inputs)
        finally:
            self.read |= recording.read


@check("every", applies_to_failing=True)
def batch_keys(trial: Trial) -> None:
    """Stages and loss read only keys that the role declares, that a sync brings, or that an earlier stage wrote.

    Finds: undeclared reads, declared keys that nothing writes, stages in the wrong order.
    """
    subject = trial.subject
    given = always_there(subject.config)
    known = {*given, *subject.given_keys()}
    batch = subject.batch(trial.rows)
    for stage in subject.role.prepare:
        recording = RecordingBatch(batch)
        name = stage_name(stage)
        try:
            resolve_object(stage)(recording, subject.args)
        except KeyError as error:
            _require_known(recording.read, known, f"stage {name}")
            raise Wrong(f"stage {name} reads {error}, which nothing has written") from error
        except StacxError as error:
            _require_known(recording.read, known, f"stage {name}")
            raise NotApplicable(NO_LOSS) from error
        _require_known(recording.read, known | (set(recording) - set(batch)), f"stage {name}")
        known |= set(recording) - set(batch)
        batch = dict(recording)
    missing = [key for key in subject.active_reads() if key not in batch and key not in given]
    if missing:
        producer = subject.config.batch_keys[missing[0]].producer
        raise Wrong(f"the role reads {missing[0]!r}, which nothing writes: {producer} would")
    validate_batch(batch, subject.active_reads(), subject.config.batch_keys)
    _loss_reads(subject, batch, trial, known)


def _loss_reads(subject: Subject, batch: Batch, trial: Trial, known: set[str]) -> None:
    probe = RecordingProbe()
    try:
        subject.step(batch, trial.outputs, probe=probe)
    except KeyError as error:
        _require_known(probe.read, known, "the loss")
        raise Wrong(f"the loss reads {error}, which nothing has written") from error
    except Exception as error:
        _require_known(probe.read, known, "the loss")
        raise NotApplicable(NO_LOSS) from error
    _require_known(probe.read, known, "the loss")


def _require_known(read: Mapping[str, None], known: set[str], who: str) -> None:
    for key in read:
        if key not in known:
            raise Wrong(f"{who} reads {key!r}, which the role does not declare for these arguments; add it to reads")
