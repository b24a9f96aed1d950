"""Commands run in this process must not decide which plugins later tests see."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_plugin_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a plugin host of its own and put the earlier one back."""
    monkeypatch.setattr("stacx_core.plugins._current", None)
