"""The arms of the benchmark on digits, and what is expected of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """An arm of one seed: the mean probability of the digit asked for, and how much the samples of a digit differ."""

    before: float
    after: float
    diversity_before: float
    diversity_after: float
    seconds: float
    teacher: float

    @property
    def gain(self) -> float:
        """What training brought."""
        return self.after - self.before


@dataclass(frozen=True)
class Fact:
    """What is expected of an arm in every seed."""

    text: str
    holds: Callable[[Score], bool]


LEARNS = Fact("gains 0.15", lambda score: score.gain >= 0.15)
NOTHING = Fact("gains nothing", lambda score: score.gain <= 0.02)
FOLLOWS = Fact("within 0.05 of the teacher", lambda score: score.after >= score.teacher - 0.05)
FAST = Fact("above 0.65", lambda score: score.after > 0.65)


@dataclass(frozen=True)
class Arm:
    """A recipe, its flags, and what is expected of it."""

    recipe: str
    flags: tuple[str, ...]
    expected: Fact
    rollouts: int = 60
    steps: int = 10


REWARD = ("--rm-type", "digit_classifier")
DEALT = ("--rm-type", "diffusion_control:dealt_to_others")
TWO_UPDATES = ("--num-steps-per-rollout", "2")
GRPO = (*TWO_UPDATES, "--clip-range", "1e-3")
WINDOW = (*TWO_UPDATES, "--clip-range", "1e-2", "--window-high", "5")
NFT = (*TWO_UPDATES, "--advantage-clip", "1")
AWM = (*TWO_UPDATES, "--nft-loss", "awm", "--nft-ref-coef", "0.1")
DMD = ("--distill-loss", "dmd", "--sampling-steps", "2", "--student-every", "3", "--critic-lr", "3e-4", "--lr", "1e-4")
ARMS = {
    "flow_grpo": Arm("flow_grpo", (*REWARD, *GRPO), LEARNS),
    "mix_grpo": Arm("mix_grpo", (*REWARD, *WINDOW), LEARNS),
    "diffusion_nft": Arm("diffusion_nft", (*REWARD, *NFT), LEARNS),
    "diffusion_nft, awm": Arm("diffusion_nft", (*REWARD, *AWM), LEARNS),
    "flow_dpo, online": Arm("flow_dpo", (*REWARD, "--online-pairs", "--flow-dpo-beta", "100"), LEARNS),
    "flow_grpo, control": Arm("flow_grpo", (*DEALT, *GRPO), NOTHING),
    "diffusion_nft, control": Arm("diffusion_nft", (*DEALT, *NFT), NOTHING),
    "flow_distill, velocity": Arm("flow_distill", (), FOLLOWS),
    "flow_distill, transition_kl": Arm("flow_distill", ("--distill-loss", "transition_kl"), FOLLOWS),
    "flow_distill, dmd": Arm("flow_distill", DMD, FAST, rollouts=180, steps=2),
}
