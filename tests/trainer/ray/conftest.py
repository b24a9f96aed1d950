"""One Ray for all tests of this folder; runs of this process use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("ray")
pytest.importorskip("megatron.core")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray of four CPUs."""
    from stacx_core.trainer.ray.cluster import ray

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=10**8, log_to_driver=False)
    yield
    ray.shutdown()
