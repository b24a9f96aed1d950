"""A model on SGLang servers as the teacher."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from stacx_core.backends.model import vocabulary_size
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, EngineError, ModelError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.identity import ServedPaths, served_paths
from stacx_core.rollout.sglang.pool import Limits, ServerPool, servers_of
from stacx_core.rollout.sglang.scorer import ServerScorer, settled
from stacx_core.rollout.sglang.whole import check_whole
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn

T = TypeVar("T")
FLAG = "--teacher-url"


class SGLangTeacher:
    """Scores and acts on the servers of ``--teacher-url``, which hold one model.

    A sample or state that the servers fail on is answered with the error, so that the others of its batch count. The
    model may have more ids than the policy, as padding; those are never among the likeliest ones it tells. A server
    scores texts of up to seven tokens fewer than its ``--context-length``.

    Args:
        args: The resolved knobs. ``teacher_load`` names the same model on this machine, for its tokenizer and its
            vocabulary, where the path the servers tell is not to be found here.
        tokenizer: Of the policy.
        scores: Whether it will be asked for scores, which the servers may give at temperature 1 only.

    Raises:
        ConfigError: No or several models are served, the tokenizer gives an id another meaning than the policy's
            does, the checkpoint lacks weights, or the servers cannot score at the sampling temperature.
        EngineError: A server does not answer.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase, *, scores: bool = True) -> None:
        self.temperature: float = args.rollout_temperature
        self.tokenizer = tokenizer
        # One failure does not tell of the server: it may be the sample's.
        limits = Limits(
            args.sglang_concurrency, max(args.teacher_retries, 1), args.teacher_retry_wait, args.teacher_timeout
        )
        self.pool = ServerPool(servers_of(FLAG, args.teacher_url), limits)
        served = _one_model(self.pool)
        folder, tokens = args.teacher_load or served.model, args.teacher_load or served.tokenizer
        try:
            size = vocabulary_size(folder)
            check_same_tokens(FLAG, tokens, args.hf_checkpoint, "the teacher scores the policy's token ids")
        except ModelError as error:
            raise ConfigError(
                f"the model of {FLAG} is not to be found here: {error.message}",
                "name a copy of it, or its hub id, with --teacher-load",
            ) from error
        policy = vocabulary_size(args.hf_checkpoint)
        if size is None:
            raise ConfigError(f"the config of the teacher {folder!r} does not tell the size of its vocabulary")
        check_whole(FLAG, served.model)
        stops = [tokenizer.eos_token_id] if isinstance(tokenizer.eos_token_id, int) else []
        # The guard asks again what failed; here a request is sent once.
        self._engine = SGLangEngine(self.pool, stops, size, tries=1)
        self._scorer = ServerScorer(self.pool, size, told=policy, tries=1)
        if scores:
            self._engine.check_scoring(self.temperature)

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`.

        Raises:
            ConfigError: ``top_k`` or an id is beyond the vocabulary.
            ServerRefused: A server will not score a sample, such as one beyond its context.
        """
        return self._each(self._scorer.score(sample, top_k, self.temperature) for sample in samples)

    def query(self, samples: Sequence[Sample], ids: Sequence[list[list[int]]]) -> list[list[list[float]] | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.QueryTeacher`; raises like :meth:`score`."""
        pairs = zip(samples, ids, strict=True)
        return self._each(self._scorer.query(sample, asked, self.temperature) for sample, asked in pairs)

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`."""
        self.pool.run(self.pool.revive())
        requests = [GenerationRequest(turn.context, [turn.seed]) for turn in turns]
        return [
            answer if isinstance(answer, EngineError) else self._action(answer)
            for answer in self._engine.attempt(requests, params)
        ]

    def _each(self, calls: Iterable[Awaitable[T]]) -> list[T | EngineError]:
        # Who asks decides how often, so servers that were given up are tried anew each time.
        self.pool.run(self.pool.revive())
        return self.pool.run(settled(calls))

    def _action(self, answer: Generation) -> TeacherAction:
        return TeacherAction(answer.ids, str(self.tokenizer.decode(answer.ids, skip_special_tokens=True)))


def _one_model(pool: ServerPool) -> ServedPaths:
    """What all servers hold.

    Raises:
        ConfigError: They hold different models.
        EngineError: One does not answer.
    """
    told = pool.run(served_paths(FLAG, pool))
    if len({paths.model for paths in told}) > 1:
        pairs = ", ".join(f"{paths.url} {paths.model!r}" for paths in told)
        raise ConfigError(f"the servers of {FLAG} hold different models: {pairs}")
    return told[0]
