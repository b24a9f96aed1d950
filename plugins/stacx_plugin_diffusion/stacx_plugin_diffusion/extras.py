"""Packages that only parts of this plugin need."""

from __future__ import annotations

import importlib
from typing import Any

from stacx_core import ConfigError, StacxError


def require(module: str, extra: str, purpose: str, error: type[StacxError] = ConfigError) -> Any:
    """Import an optional package.

    Raises:
        StacxError: It is not there; of the given class, and names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as reason:
        raise error(
            f"{purpose} needs {module.partition('.')[0]!r}: {reason}",
            f'pip install "stacx-plugin-diffusion[{extra}]"',
        ) from reason
