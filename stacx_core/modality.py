"""What the samples of a recipe are made of: tokens of language, unless the recipe says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stacx_core.batch_keys import BatchKey

if TYPE_CHECKING:
    from stacx_core.knobs import Knob


@dataclass(frozen=True)
class Modality:
    """What a run needs to know of samples and models that differs from one kind of model to another.

    Recipes of one family share one. All references are "package.module:attribute" and are resolved when a run begins,
    so that a recipe can be listed without what its models need.

    Args:
        name: for messages.
        setup: reference of the class that prepares a run, see `stacx_core.trainer.setup.RunSetup`.
        worker: reference of the class that loads, runs and trains a role, a `stacx_core.RoleWorker`.
        check_rows: reference of a function from a `stacx_core.testing.Subject` to the samples that `stacx check` uses.
        sample: reference of the function behind `stacx sample`.
        host_knobs: names of the host's knobs that its recipes use; the others are refused. None: all.
        knobs: further knobs of all its recipes.
        batch_keys: keys of its batches beside the host's.
        unit: what a response is made of, as metrics call it.
    """

    name: str
    setup: str
    worker: str
    check_rows: str
    sample: str
    host_knobs: tuple[str, ...] | None = None
    knobs: tuple[Knob, ...] = ()
    batch_keys: tuple[BatchKey, ...] = ()
    unit: str = "token"


LANGUAGE = Modality(
    name="language",
    setup="stacx_core.trainer.language:LanguageSetup",
    worker="stacx_core.trainer.language_worker:LanguageWorker",
    check_rows="stacx_core.testing.rows:language_rows",
    sample="stacx_core.trainer.language:sample_responses",
)
"""Prompts and responses of tokens, read by causal language models."""
