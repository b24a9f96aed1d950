"""What can be done without diffusers and peft, and what is said where they are needed."""

from __future__ import annotations

import json

LISTED = """
import sys
sys.modules["diffusers"] = sys.modules["peft"] = None
from stacx_core.cli import main
code = main(["list-recipes", "--json"])
assert code == 0 and "torch" not in sys.modules
"""
"""Neither is installed for this `stacx`."""

TRAINED = """
import contextlib, io, json, sys
sys.modules["diffusers"] = sys.modules["peft"] = None
from stacx_core.cli import main
said = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = int(main(arguments))
    said.append((code, err.getvalue()))
print(json.dumps(said))
"""


def test_recipes_are_listed_without_importing_torch(child):
    done = child("-c", LISTED)
    assert done.returncode == 0, done.stderr
    loaded = {row["name"]: row["status"] for row in json.loads(done.stdout)}
    for name in ("flow_sft", "flow_grpo", "mix_grpo", "diffusion_nft", "flow_dpo", "flow_distill"):
        assert loaded[name] == "loaded"


def test_what_needs_them_says_which_extra_to_install(child, options, digits_checkpoints):
    runs = {
        ("--hf-checkpoint", str(digits_checkpoints["sd3"])): "a checkpoint of SD3Transformer2DModel needs 'diffusers'",
        (
            "--hf-checkpoint",
            str(digits_checkpoints["flux"]),
        ): "a checkpoint of FluxTransformer2DModel needs 'diffusers'",
        ("--lora-rank", "2"): "LoRA needs 'peft'",
    }
    own = options("flow_sft", "--num-rollout", "1", output="own")
    done = child("-c", TRAINED, json.dumps([own, *(options("flow_sft", *flags) for flags in runs)]))
    assert done.returncode == 0, done.stderr
    (code, error), *refused = json.loads(done.stdout)
    assert code == 0, error
    for (code, error), needs in zip(refused, runs.values(), strict=True):
        assert code == 2, error
        assert needs in error
        assert 'pip install "stacx-plugin-diffusion[diffusers]"' in error
