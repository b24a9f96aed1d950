"""Sandboxes: where an agent works, without network, within limits, and apart from everything else."""

from __future__ import annotations

from stacx_core.config import resolve_object
from stacx_core.errors import ConfigError, nearest
from stacx_core.swe.sandboxes.pool import SandboxPool
from stacx_core.swe.sandboxes.sandbox import CommandResult, Sandbox, SandboxProvider

__all__ = ["CommandResult", "Sandbox", "SandboxPool", "SandboxProvider", "sandbox_provider"]

PROVIDERS = {
    "bubblewrap": "stacx_core.swe.sandboxes.bubblewrap_provider:BubblewrapProvider",
    "docker": "stacx_core.swe.sandboxes.docker:DockerProvider",
    "swerex": "stacx_core.swe.sandboxes.swerex:SwerexProvider",
}
"""Name of a kind of sandbox -> what makes them, imported when it is asked for."""


def sandbox_provider(name: str) -> SandboxProvider:
    """What makes the sandboxes called ``name``.

    Raises:
        ConfigError: There is no such kind, or what it needs is not installed.
    """
    if name not in PROVIDERS:
        raise ConfigError(f"no sandbox is called {name!r}{nearest(name, PROVIDERS)}; there are {', '.join(PROVIDERS)}")
    provider: SandboxProvider = resolve_object(PROVIDERS[name])()
    return provider
