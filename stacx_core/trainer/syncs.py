"""What roles hand to each other: the recipe's ``DataSync`` entries turned into channels, in one process."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.config import DataSync, TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.errors import BatchError
from stacx_core.knobs import Args


@dataclass(frozen=True)
class LocalChannel:
    """Hands batch keys from one role to another within this process.

    An exchange first compares both key lists, so that a missing key is named before anything moves.
    """

    recipe: str
    sync: DataSync

    def transfer(self, batches: dict[str, Batch]) -> None:
        """Copy the keys from source to destination, and back for an exchange.

        Raises:
            BatchError: A key is missing or has the wrong length, naming recipe, role, key and sample.
        """
        moves = [(self.sync.src, self.sync.dst, key) for key in self.sync.keys]
        moves += [(self.sync.dst, self.sync.src, key) for key in self.sync.reverse_keys]
        for src, _, key in moves:
            self._check(batches[src], src, key)
        for src, dst, key in moves:
            batches[dst][key] = batches[src][key]

    def _check(self, batch: Batch, role: str, key: str) -> None:
        where = f"recipe {self.recipe!r}: role {role!r}"
        if key not in batch:
            raise BatchError(f"{where} did not produce {key!r} for its sync")
        for position, (value, length) in enumerate(zip(batch[key], batch["response_lengths"], strict=True)):
            if len(value) != length:
                raise BatchError(f"{where}: {key!r} of sample {position} has length {len(value)}, expected {length}")


def local_channels(config: TrainingConfig, args: Args) -> list[LocalChannel]:
    """The channels of the syncs that apply to these arguments."""
    return [LocalChannel(config.name, sync) for sync in config.syncs if sync.when is None or sync.when(args)]
