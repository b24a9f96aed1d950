"""The hooks: their documentation, and who wins."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from stacx_core import API_VERSION, hookspecs

HOOKS = {n: f for n, f in vars(hookspecs).items() if hasattr(f, "stacx_spec")}


def test_the_hooks_of_the_api() -> None:
    assert API_VERSION == 1
    signatures = {name: list(inspect.signature(hook).parameters) for name, hook in HOOKS.items()}
    assert signatures == {
        "register_recipes": [],
        "build_syncs": ["config", "args", "roles"],
        "compute_loss": ["specialization", "model_output", "batch", "reducer"],
    }


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented(name: Any) -> None:
    text = inspect.getdoc(HOOKS[name])
    assert text is not None
    for question in ("When:", "How often:", "Process:", "Wins:", "Returns:", "Shapes:"):
        assert question in text, f"{name} does not say {question}"
    for argument in inspect.signature(HOOKS[name]).parameters:
        assert f"    {argument}: " in text, f"{name} does not explain {argument}"


LOSS_PLUGIN = """
from stacx_core import hookimpl

@hookimpl({options})
def compute_loss(batch):
    {body}
"""

CALL = """
from stacx_core.plugins import plugin_host
class Loss:
    def compute_loss(self, model_output, batch, reducer):
        return ("host", batch)
print(*plugin_host().hook.compute_loss(specialization=Loss(), model_output=0, batch=1, reducer=2))
"""


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ("", "return None", "host 1"),
        ("", "return ('plugin', batch)", "plugin 1"),
        ("trylast=True", "return ('plugin', batch)", "plugin 1"),
        ("wrapper=True", "loss, metrics = yield; return ('wrapped ' + loss, metrics)", "wrapped host 1"),
    ],
)
def test_the_loss_of_a_plugin_comes_before_the_hosts(site: Any, options: Any, body: Any, expected: Any) -> None:
    site.add("stacx-loss", LOSS_PLUGIN.format(options=options, body=body))
    assert site.python("-c", CALL).out.strip() == expected


def test_a_plugin_may_add_syncs(site: Any) -> None:
    site.add(
        "stacx-syncs",
        "from stacx_core import hookimpl\n@hookimpl\ndef build_syncs(config):\n    return [config.name]",
    )
    program = (
        "from stacx_core.plugins import plugin_host\nhost = plugin_host()\n"
        "added = host.hook.build_syncs(config=host.find('sft').config, args=None, roles={})\n"
        "print([names for names in added if names])"
    )
    assert site.python("-c", program).out.strip() == "[['sft']]"
