"""The runner of ``--harness``: rollouts whose episodes a harness plays, with the policy and its teacher behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from stacx_core.errors import ConfigError, StacxError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import RolloutEngine, SamplingParams
from stacx_core.rollout.environments.loading import run_environment
from stacx_core.rollout.episodes import Episode, EpisodeTask
from stacx_core.rollout.playing import RunsEpisodes, Who
from stacx_core.rollout.sampled import sequence_limit
from stacx_core.rollout.tasks import training_task
from stacx_core.rollout.teachers.protocol import Actor
from stacx_core.swe.agent.harbor import HarborTasks
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.rendering import Renderer
from stacx_core.swe.gateway.settings import GatewaySettings
from stacx_core.swe.harness.commands import Harness, load_harness
from stacx_core.swe.harness.episodes import MODEL, HarnessEpisodes


def harness_runner(
    args: Args, tokenizer: PreTrainedTokenizerBase, context_length: int | None, first: EpisodeTask | None = None
) -> HarnessRunner:
    """The runner of ``--harness``, once the sandbox of a task was opened to see whether that works.

    Args:
        args: The run's.
        tokenizer: Of the student.
        context_length: Of the student, when it has one.
        first: The task to begin; the first training task by default.

    Raises:
        ConfigError: The harness cannot be run, ``--environment`` names no folder of tasks, or one of fewer than are
            asked for, the sandbox of the first one cannot be opened, or the tokenizer has no chat template.
    """
    harness = load_harness(args.harness)
    make = run_environment(args)
    if not isinstance(make, HarborTasks):
        raise ConfigError(
            f"--harness works on the tasks of --environment harbor:FOLDER, not in {args.environment}; drop one of them"
        )
    Renderer(tokenizer)
    try:
        with make.pool.open(make.task((first or training_task(args, 0, 0)).seed)):
            pass
    except StacxError as error:
        told = f"--environment {args.environment}: its first task fails: {error.message}"
        raise ConfigError(told, *error.hints) from error
    return HarnessRunner(args, tokenizer, context_length, harness, make)


class HarnessRunner(RunsEpisodes):
    """Has a harness play the episodes of a rollout; the gateway names who answers each of its requests.

    Args:
        args: The run's.
        tokenizer: Of the student, with a chat template.
        context_length: Of the student, when it has one.
        harness: What to run.
        make: The tasks and their sandboxes.
    """

    def __init__(
        self,
        args: Args,
        tokenizer: PreTrainedTokenizerBase,
        context_length: int | None,
        harness: Harness,
        make: HarborTasks,
    ) -> None:
        self.args = args
        self.tokenizer = tokenizer
        self.limit = sequence_limit(args, context_length)
        self.episodes = HarnessEpisodes(harness, make, args.harness_timeout)

    def play(
        self,
        tasks: Sequence[EpisodeTask],
        engine: RolloutEngine | None,
        teacher: Actor | None,
        who: Who,
        params: SamplingParams,
        rollout: int,
    ) -> Iterator[tuple[int, Episode]]:
        """See :class:`stacx_core.rollout.playing.RunsEpisodes` and :meth:`HarnessEpisodes.play`."""
        settings = GatewaySettings(MODEL, params, self.limit, self.args.seed, max_turns=self.args.max_turns)
        with Gateway(settings, self.tokenizer, engine, teacher, who) as gateway:
            yield from self.episodes.play(tasks, gateway, rollout)

    def stop(self) -> None:
        """See :class:`stacx_core.rollout.playing.RunsEpisodes`."""
        self.episodes.stop()
