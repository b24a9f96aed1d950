"""What `stacx show-recipe` says about a recipe of the family."""

from __future__ import annotations

import subprocess
import sys

STAGES = ["shaping:shape_overlong", "shaping:reward_kl", "recipes.ppo:gae", "shaping:whiten_advantages"]


def test_show_recipe_explains_the_stages_of_ppo_in_order_without_torch() -> None:
    code = (
        "import sys; from stacx_core.cli import main; main(['show-recipe', 'ppo']); "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    order = [shown.index(f"policy: stacx_plugin_grpo.{stage}\n   ") for stage in STAGES]
    assert order == sorted(order)
    assert "Write ``advantages`` and ``returns``" in shown
    assert "always (sent to critic)" in shown
    assert "SampledRollout, delivers tokens, rewards, rollout_log_probs" in shown
    assert "loss of a step = 1/G * sum_i sum_t x m / max(D_i, 1)" in shown
