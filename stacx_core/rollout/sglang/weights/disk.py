"""Weights through a folder that the trainer and the servers share."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from stacx_core.errors import WeightSyncError
from stacx_core.rollout.sglang.weights.everywhere import everywhere
from stacx_core.rollout.sglang.weights.plan import Plan
from stacx_core.rollout.sglang.weights.served import ServedModel
from stacx_core.rollout.sglang.weights.transport import Transport, deliver

INDEX = "model.safetensors.index.json"


class DiskTransport(Transport):
    """Writes a checkpoint for each version, and lets the servers read it.

    The servers answer under the path of that checkpoint from then on; it is kept until none of them does, and its
    config as long as one that does not answer might.

    Args:
        folder: Where the versions are written; every server must see it under the same path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._written: list[Path] = []
        self._held: dict[str, set[str]] = {}
        """By server, the paths under which it may answer."""

    async def prepare(self, plan: Plan, version: str) -> None:
        """Write the checkpoint while the servers generate, one file per bucket.

        Raises:
            WeightSyncError: It cannot be written.
        """
        try:
            await asyncio.to_thread(self._write, plan, version)
        except (OSError, SafetensorError) as error:  # The latter of a full disk.
            shutil.rmtree(self._partial(version), ignore_errors=True)
            raise WeightSyncError(f"the weights cannot be written to {self.folder}: {error}") from error

    async def send(self, plan: Plan, version: str, timeout: float) -> None:
        """Let all servers read the checkpoint; SGLang empties the prefix cache with it."""

        checkpoint = self.folder / version
        payload = {"model_path": str(checkpoint), "load_format": "auto", "flush_cache": True}

        async def load(target: ServedModel) -> None:
            await deliver(target, "/update_weights_from_disk", payload, timeout, f"the checkpoint {checkpoint}")

        await everywhere(plan.targets, load)

    def _write(self, plan: Plan, version: str) -> None:
        """Write under another name first: a server that reads half a checkpoint dies of it."""
        partial, final = self._partial(version), self.folder / version
        self._held |= {target.url: {target.path, str(final)} for target in plan.targets}
        self._forget({target.path for target in plan.targets})
        for leftover in (partial, final):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        places = {}
        for number, names in enumerate(plan.buckets):
            file = f"model-{number + 1:05d}-of-{len(plan.buckets):05d}.safetensors"
            save_file({name: tensor.cpu() for name, tensor in plan.bucket(names)}, partial / file, {"format": "pt"})
            places.update(dict.fromkeys(names, file))
        (partial / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
        plan.targets[0].config.save_pretrained(partial)
        partial.rename(final)
        self._written = [*(folder for folder in self._written if folder != final), final]

    def _partial(self, version: str) -> Path:
        return self.folder / f".{version}.partial"

    def _forget(self, in_use: set[str]) -> None:
        """Remove checkpoints that no server uses. A server that is away may be back: its config is asked for then."""
        may_return = set[str]().union(*self._held.values())
        for folder in [folder for folder in self._written if str(folder) not in in_use]:
            if str(folder) in may_return:
                for file in folder.glob("*.safetensors*"):
                    file.unlink()
            else:
                shutil.rmtree(folder, ignore_errors=True)
                self._written.remove(folder)
