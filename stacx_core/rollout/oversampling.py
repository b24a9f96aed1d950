"""Beginning more groups than a rollout needs, and what becomes of those that were not needed."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stacx_core.data.prompts import PromptRow
from stacx_core.errors import ConfigError, EngineError
from stacx_core.rollout.engine import (
    Generation,
    GenerationRequest,
    InterruptibleEngine,
    RolloutEngine,
    SamplingParams,
)


@dataclass(frozen=True)
class PromptGroup:
    """A prompt, and what there is of its responses.

    Args:
        row: The prompt.
        prompt: Its token ids.
        seeds: One per response.
        answers: What was sampled of each response; empty when none was begun.
    """

    row: PromptRow
    prompt: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    answers: list[Generation] = field(default_factory=list)

    @property
    def request(self) -> GenerationRequest:
        """What an engine is to do."""
        return GenerationRequest(self.prompt, self.seeds, self.answers)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; the row by its number."""
        return {
            "row": self.row.index,
            "prompt": self.prompt,
            "seeds": self.seeds,
            "answers": list(map(asdict, self.answers)),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], rows: Mapping[int, PromptRow]) -> PromptGroup:
        """The group of a state."""
        answers = [Generation(**answer) for answer in state["answers"]]
        return cls(rows[state["row"]], state["prompt"], state["seeds"], answers)


class Leftovers:
    """Groups that were begun and not needed, each of which is handed out once.

    Args:
        keep_responses: Whether what was sampled is kept, or the prompt alone, to be answered anew.
        keep_ended: Whether that goes for groups with nothing left to sample too.
    """

    def __init__(self, keep_responses: bool, keep_ended: bool) -> None:
        self.keep_responses = keep_responses
        self.keep_ended = keep_ended
        self._groups: list[PromptGroup] = []

    def take(self, count: int) -> list[PromptGroup]:
        """The first ``count`` groups, or all there are."""
        taken, self._groups = self._groups[:count], self._groups[count:]
        return taken

    def put(self, groups: Sequence[PromptGroup]) -> None:
        """Groups that come before those that are there."""
        self._groups = [*(g if self._keeps(g) else PromptGroup(g.row) for g in groups), *self._groups]

    def _keeps(self, group: PromptGroup) -> bool:
        ended = all(answer.finish != "abort" for answer in group.answers)
        return self.keep_responses and (self.keep_ended or not ended)

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps."""
        return [group.state() for group in self._groups]

    def restore(self, state: Sequence[Mapping[str, Any]], rows: Mapping[int, PromptRow], size: int) -> None:
        """Go on from a state.

        Args:
            state: Of a run with the same rows.
            rows: Those of the run, by their numbers.
            size: Responses of a group; a group of another size is answered anew.
        """
        groups = [PromptGroup.of(kept, rows) for kept in state]
        self._groups = []
        self.put([group if len(group.seeds) == size else PromptGroup(group.row) for group in groups])


class OverSampler:
    """Has groups answered until it is told that there are enough.

    Args:
        leftovers: Where the others go.
        aborted: Gets the responses that were stopped half-way, empty ones too.
    """

    def __init__(self, leftovers: Leftovers, aborted: list[Generation]) -> None:
        self.leftovers = leftovers
        self.aborted = aborted

    def answered(
        self, groups: Sequence[PromptGroup], engine: RolloutEngine, params: SamplingParams
    ) -> Generator[dict[int, PromptGroup]]:
        """Each group by its place, when its responses have all come to their end; closing it stops the rest.

        Raises:
            ConfigError: The engine cannot be stopped half-way.
            EngineError: A response could not be had, or somebody else stopped the engine.
        """
        if not isinstance(engine, InterruptibleEngine):
            raise ConfigError(f"{type(engine).__name__} cannot be stopped half-way; drop --over-sampling-batch-size")
        with engine.start([group.request for group in groups], params) as batch:
            try:
                for place, answers in batch:
                    yield {place: replace(groups[place], answers=answers)}
            except GeneratorExit:
                rest = batch.abort()
                self.leftovers.put([replace(groups[place], answers=rest[place]) for place in sorted(rest)])
                self.aborted += [answer for own in rest.values() for answer in own if answer.finish == "abort"]
                raise
            if batch.aborted:
                raise EngineError("the generation was aborted before all its responses came to an end")
