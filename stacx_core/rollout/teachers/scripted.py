"""A scripted expert: a plain function that knows what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from stacx_core.data.rendering import ChatTemplateMode, action_ids
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, TeacherError
from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn


class ScriptedTeacher:
    """Acts by a function from the observation to the text of the action.

    Args:
        function: Sees what the environment showed last.
        tokenizer: Of the policy, which is to learn the action's tokens.
        mode: When to end actions as the chat template ends a turn.
    """

    def __init__(
        self, function: Callable[[str], str], tokenizer: PreTrainedTokenizerBase, mode: ChatTemplateMode
    ) -> None:
        self.function = function
        self.tokenizer = tokenizer
        self.mode = mode

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """A script has no probabilities.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("a scripted expert has no log-probs and can only act; use --teacher model to be scored")

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | Exception]:
        """The function's actions, each ended by one end-of-turn token; an error where it has none."""
        return [self._action(turn.observation) for turn in turns]

    def _action(self, observation: str) -> TeacherAction | Exception:
        try:
            text = self.function(observation)
            if not isinstance(text, str):
                return TeacherError(f"the scripted expert must return text, not {type(text).__name__} {text!r}")
            return TeacherAction(action_ids(text, self.tokenizer, self.mode), text)
        except Exception as error:  # The other states have actions all the same.
            return error
