"""A model on SGLang servers as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.backends.model import vocabulary_size
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, EngineError, ModelError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool, servers_of
from stacx_core.rollout.sglang.scorer import ServerScorer, settled, understood
from stacx_core.rollout.sglang.server import SGLangServer
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn


class SGLangTeacher:
    """Scores and acts on the servers of ``--teacher-url``, which hold one model.

    A sample or state that the servers fail on is answered with the error, so that the others of its batch count. The
    model may have more ids than the policy, as padding; those are never among the likeliest ones it tells. A server
    scores texts of up to seven tokens fewer than its ``--context-length``.

    Args:
        args: The resolved knobs. ``teacher_load`` names the same model on this machine, for its tokenizer and its
            vocabulary, where the path the servers tell is not to be found here.
        tokenizer: Of the policy.

    Raises:
        ConfigError: No or several models are served, the tokenizer gives an id another meaning than the policy's
            does, or the servers cannot score at the sampling temperature.
        EngineError: A server does not answer.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase) -> None:
        self.temperature: float = args.rollout_temperature
        self.tokenizer = tokenizer
        limits = Limits(args.sglang_concurrency, args.teacher_retries, args.teacher_retry_wait, args.teacher_timeout)
        self.pool = ServerPool(servers_of("--teacher-url", args.teacher_url), limits)
        folder, tokens = served(self.pool, args.teacher_load)
        try:
            size = vocabulary_size(folder)
            check_same_tokens("--teacher-url", tokens, args.hf_checkpoint, "the teacher scores the policy's token ids")
        except ModelError as error:
            raise ConfigError(
                f"the model of --teacher-url is not to be found here: {error.message}",
                "name a copy of it, or its hub id, with --teacher-load",
            ) from error
        policy = vocabulary_size(args.hf_checkpoint)
        if size is None:
            raise ConfigError(f"the config of the teacher {folder!r} does not tell the size of its vocabulary")
        stops = [tokenizer.eos_token_id] if isinstance(tokenizer.eos_token_id, int) else []
        # The guard asks again what failed; here a request is sent once.
        self._engine = SGLangEngine(self.pool, stops, size, tries=1)
        self._scorer = ServerScorer(self.pool, size, told=policy, tries=1)
        self._engine.check_scoring(self.temperature)

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`.

        Raises:
            ConfigError: ``top_k`` or an id is beyond the vocabulary.
            ServerRefused: A server will not score a sample, such as one beyond its context.
        """
        return self.pool.run(settled(self._scorer.score(sample, top_k, self.temperature) for sample in samples))

    def query(self, samples: Sequence[Sample], ids: Sequence[list[list[int]]]) -> list[list[list[float]] | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.QueryTeacher`; raises like :meth:`score`."""
        pairs = zip(samples, ids, strict=True)
        return self.pool.run(settled(self._scorer.query(sample, asked, self.temperature) for sample, asked in pairs))

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction | EngineError]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`."""
        requests = [GenerationRequest(turn.context, [turn.seed]) for turn in turns]
        return [
            answer if isinstance(answer, EngineError) else self._action(answer)
            for answer in self._engine.attempt(requests, params)
        ]

    def _action(self, answer: Generation) -> TeacherAction:
        return TeacherAction(answer.ids, str(self.tokenizer.decode(answer.ids, skip_special_tokens=True)))


def served(pool: ServerPool, load: str | None) -> tuple[str, str]:
    """Where the model of the servers and its tokenizer are to be read.

    Args:
        pool: The servers.
        load: The same model on this machine, if it was named.

    Raises:
        ConfigError: The servers hold different models.
        EngineError: One does not answer.
    """

    async def told(server: SGLangServer) -> dict[str, Any]:
        answer = await server.get("/model_info", pool.limits.timeout)
        return understood(
            server, "/model_info", lambda: {key: str(answer[key]) for key in ("model_path", "tokenizer_path")}
        )

    infos = pool.run(pool.every(told))
    paths = [info["model_path"] for info in infos]
    if len(set(paths)) > 1:
        pairs = ", ".join(f"{server.url} {path!r}" for server, path in zip(pool.servers, paths, strict=True))
        raise ConfigError(f"the servers of --teacher-url hold different models: {pairs}")
    return (load, load) if load else (paths[0], infos[0]["tokenizer_path"])
