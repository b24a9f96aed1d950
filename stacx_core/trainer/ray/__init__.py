"""Roles that are trained by actors of Ray: one actor per process, one placement group per pool.

A Ray that a run starts asks for no token, which it would keep in the home folder, tells nobody of its use, and leaves
the GPUs visible to processes that reserve none. Ray reads these settings when it is imported.
"""

from __future__ import annotations

import os

for _name, _value in {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}.items():
    os.environ.setdefault(_name, _value)
