"""Logging to Weights & Biases, without its own step counter."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args

RUN_ID = "wandb_id"


class WandbRun:
    """A run whose every chart has ``rollout`` as its x axis.

    W&B drops what is logged with a step below its last one. Nothing here passes a step: all metrics are plotted over
    the logged key ``rollout``, so that a late evaluation or a resumed run keeps all its points.

    Raises:
        ConfigError: wandb is not installed.
    """

    def __init__(self, args: Args, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("--wandb-mode needs wandb: pip install 'stacx-core[wandb]'") from error
        id_file = folder / RUN_ID
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        self._run: Any = wandb.init(
            mode=args.wandb_mode,
            project=args.wandb_project,
            name=args.wandb_name or folder.name,
            id=id_file.read_text(),
            resume="allow",
            dir=folder,
            config=args.as_dict(),
        )
        self._run.define_metric("rollout")
        self._run.define_metric("*", step_metric="rollout")

    def log(self, metrics: Mapping[str, float]) -> None:
        """Log one line of metrics."""
        self._run.log(dict(metrics))

    def show(self, pictures: Sequence[Path], rollout: int) -> None:
        """Log pictures under the names of their folders, one after the other."""
        import wandb

        shown: dict[str, list[Any]] = {}
        for path in pictures:
            shown.setdefault(path.parent.name, []).append(wandb.Image(str(path)))
        self._run.log({"rollout": float(rollout), **shown})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
