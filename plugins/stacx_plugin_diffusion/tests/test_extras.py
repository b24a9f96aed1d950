"""What can be done without diffusers and peft, and what is said where they are needed."""

from __future__ import annotations

import json

import pytest

WITHOUT = """
import sys
sys.modules["diffusers"] = sys.modules["peft"] = None
from stacx_core.cli import main
code = int(main(sys.argv[1:]))
print("torch" in sys.modules)
sys.exit(code)
"""
"""A `stacx` for which neither is installed; it prints whether torch was imported."""


def test_recipes_are_listed_without_importing_torch(child):
    done = child("-c", WITHOUT, "list-recipes", "--json")
    assert done.returncode == 0, done.stderr
    listing, _, torch_imported = done.stdout.strip().rpartition("\n")
    loaded = {row["name"]: row["status"] for row in json.loads(listing)}
    for name in ("flow_sft", "flow_grpo", "mix_grpo", "diffusion_nft", "flow_dpo", "flow_distill"):
        assert loaded[name] == "loaded"
    assert torch_imported == "False"


def test_a_network_of_this_package_trains_without_them(child, options):
    done = child("-c", WITHOUT, *options("flow_grpo", "--num-rollout", "1"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("network", "flags", "needs"),
    [
        ("sd3", (), "a checkpoint of SD3Transformer2DModel needs 'diffusers'"),
        ("flux", (), "a checkpoint of FluxTransformer2DModel needs 'diffusers'"),
        ("small", ("--lora-rank", "2"), "LoRA needs 'peft'"),
    ],
)
def test_what_needs_them_says_which_extra_to_install(child, options, digits_checkpoints, network, flags, needs):
    given = options("flow_sft", "--hf-checkpoint", digits_checkpoints[network], *flags)
    done = child("-c", WITHOUT, *given)
    assert done.returncode == 2, done.stderr
    assert needs in done.stderr
    assert 'pip install "stacx-plugin-diffusion[diffusers]"' in done.stderr
    assert "Traceback" not in done.stderr
