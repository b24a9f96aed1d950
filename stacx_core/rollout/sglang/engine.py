"""The rollout engine on SGLang servers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from weakref import WeakSet

from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import Generation, GenerationRequest, SamplingParams
from stacx_core.rollout.sglang.pool import Limits, ServerPool
from stacx_core.rollout.sglang.probe import Scaling, measure_scaling
from stacx_core.rollout.sglang.router import Router
from stacx_core.rollout.sglang.running import Responder, RunningBatch
from stacx_core.rollout.sglang.scorer import ServerScorer, check_ids, gathered, settled
from stacx_core.rollout.teachers.protocol import TeacherScore


class SGLangEngine:
    """Generates and scores on servers that hold the policy's weights.

    Log-probs are those of the full softmax at the sampling temperature, before top-p and top-k, as the embedded
    engine's are. Greedy decoding gives its token ids too. A server takes a response's seed only when it was started
    with ``--enable-deterministic-inference``; without that, sampled responses differ from run to run. It ends a
    response at its own model's and tokenizer's stop tokens as well as at ``stop_ids``.

    Args:
        pool: The servers.
        stop_ids: Token ids that end a response.
        vocabulary: Number of the model's ids; a server dies of any other.
        tries: How often a request is sent; the pool's by default.
        router: What the pool is, where it is no server.
    """

    def __init__(
        self,
        pool: ServerPool,
        stop_ids: Sequence[int],
        vocabulary: int,
        tries: int | None = None,
        router: Router | None = None,
    ) -> None:
        self.pool = pool
        self.stop_ids = sorted(set(stop_ids))
        self.vocabulary = vocabulary
        self.tries = tries
        self.router = router
        self.scorer = ServerScorer(pool, vocabulary, tries=tries)
        self.labels: Mapping[str, str] | None = None
        """Of weights that responses may be made with, and the version that each stands for; any when it is ``None``."""
        self._batches: WeakSet[RunningBatch] = WeakSet()
        self._noting = threading.Lock()

    @cached_property
    def scaling(self) -> Scaling:
        """What the servers do with a temperature."""
        return self.pool.run(measure_scaling(self.pool, self.vocabulary))

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[list[Generation]]:
        """See :class:`stacx_core.rollout.engine.RolloutEngine`.

        Raises:
            ConfigError: A prompt is empty or has an id that the model lacks.
            EngineError: A response could not be had, or :meth:`abort` was called.
        """
        with self.start(requests, params) as batch:
            groups = dict(batch)
        if batch.aborted:
            raise EngineError("the generation was aborted before all its responses came to an end")
        return [groups[index] for index in range(len(requests))]

    def start(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> RunningBatch:
        """See :class:`stacx_core.rollout.engine.InterruptibleEngine`.

        Raises:
            ConfigError: A prompt is empty or has an id that the model lacks.
        """
        batch = RunningBatch(self._responder(requests, params), requests)
        with self._noting:
            self._batches.add(batch)
        return batch

    def attempt(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation | EngineError]:
        """One response per request, with its first seed, or the error for which it could not be had."""
        responder = self._responder(requests, params)
        return self.pool.run(settled(responder.respond(request.prompt, request.seeds[0]) for request in requests))

    def _responder(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> Responder:
        for index, request in enumerate(requests):
            if not request.prompt:
                raise ConfigError(f"prompt {index} has no token; a server needs one to go on from")
            for ids in (request.prompt, *(begun.ids for begun in request.begun)):
                check_ids(f"prompt {index}", ids, self.vocabulary)
        if params.temperature not in (0, 1) and not self.scaling.outputs:
            raise ConfigError(
                f"the SGLang servers tell log-probs at temperature 1, whatever they sample at, here "
                f"{params.temperature:g}; start them without SGLANG_RETURN_ORIGINAL_LOGPROB"
            )
        return Responder(self.pool, params, self.stop_ids, self.vocabulary, self.tries, self.labels, self.router)

    def abort(self) -> None:
        """Stop every generation under way, from another thread; each then raises in the thread that waits for it."""
        with self._noting:
            batches = list(self._batches)
        for batch in batches:
            batch.request_abort()

    def score(self, samples: Sequence[Sample], top_k: int, temperature: float) -> list[TeacherScore]:
        """See :class:`stacx_core.rollout.scoring.ScoringEngine`.

        Raises:
            ConfigError: The servers cannot score at this temperature, or an id or ``top_k`` is beyond the vocabulary.
            EngineError: A sample could not be scored.
        """
        self.check_scoring(temperature)
        top_k = min(top_k, self.vocabulary)
        return self.pool.run(gathered(self.scorer.score(sample, top_k, temperature) for sample in samples))

    def query(
        self, samples: Sequence[Sample], ids: Sequence[list[list[int]]], temperature: float
    ) -> list[list[list[float]]]:
        """Log-probs of given ids ``[R][K]`` per sample; raises like :meth:`score`."""
        self.check_scoring(temperature)
        pairs = zip(samples, ids, strict=True)
        return self.pool.run(gathered(self.scorer.query(sample, asked, temperature) for sample, asked in pairs))

    def check_scoring(self, temperature: float) -> None:
        """Make sure that the servers score at a temperature.

        Raises:
            ConfigError: They score at 1 only.
        """
        if temperature != 1 and not self.scaling.inputs:
            raise ConfigError(
                f"the SGLang servers score given tokens at temperature 1 only, and the run is at {temperature:g}: use "
                "--rollout-temperature 1, or a scoring model in this process"
            )

    def close(self) -> None:
        """Stop what is under way; the servers stay up."""
        self.abort()


def limits_of(args: Args) -> Limits:
    """The pool's limits from the resolved knobs."""
    return Limits(args.sglang_concurrency, args.sglang_retries, args.sglang_retry_wait, args.sglang_timeout)
