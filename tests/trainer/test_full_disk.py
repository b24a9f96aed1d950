"""A disk that fills up while a run is saved: an error that says so, and checkpoints that are as they were.

Stands in for it: the most bytes that the system lets this process write into one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LIMITED = """
import resource, sys
from stacx_core.cli import main

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("how", [(), ("--async-save",)])
@pytest.mark.parametrize(("share", "file"), [(0.5, "model.safetensors"), (1.5, "policy.optimizer.pt")])
def test_a_save_that_does_not_fit(
    train: Any, child: Any, checkpoint: Path, sums: Path, tmp_path: Path, share: float, file: str, how: tuple[str, ...]
) -> None:
    """The weights do not fit, or the weights do and the moments, twice as large, do not."""
    assert train("sft", "--num-rollout", "1").code == 0
    limit = int(share * (checkpoint / "model.safetensors").stat().st_size)
    given = ["train", "-c", tmp_path / "run" / "config.toml", "--resume", "--num-rollout", "2", *how]
    done = child("-c", LIMITED, str(limit), *map(str, given))
    assert done.returncode == 1
    folder = tmp_path / "run" / "checkpoints"
    assert f"error: cannot save {folder / 'rollout_000002'}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "rollout_000001"]
    assert train("sft", "--num-rollout", "2", "--resume").code == 0
    assert (folder / "latest" / "policy.optimizer.pt").stat().st_size > limit


def test_a_folder_that_cannot_take_the_configuration(train: Any, child: Any, tmp_path: Path) -> None:
    assert train("sft", "--num-rollout", "1").code == 0
    given = ["train", "-c", tmp_path / "run" / "config.toml", "--resume", "--num-rollout", "2"]
    done = child("-c", LIMITED, "1000", *map(str, given))
    assert done.returncode == 1
    assert f"error: {tmp_path / 'run'} can no longer be written: [Errno 27] File too large" in done.stderr
