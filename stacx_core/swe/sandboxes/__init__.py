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
"""Name of a sandbox -> what makes them, imported when it is asked for."""


def sandbox_provider(name: str) -> SandboxProvider:
    """What makes the sandboxes called ``name``, perhaps followed by a kind, as in ``swerex:modal``.

    Raises:
        ConfigError: There is no such sandbox, or what it needs is not installed.
    """
    name, _, kind = name.partition(":")
    if name not in PROVIDERS or (kind and name != "swerex"):
        known = ", ".join(PROVIDERS)
        raise ConfigError(
            f"no sandbox is called {name + ':' * bool(kind) + kind!r}{nearest(name, PROVIDERS)}; there are {known}"
        )
    provider: SandboxProvider = resolve_object(PROVIDERS[name])(*((kind,) if kind else ()))
    return provider
