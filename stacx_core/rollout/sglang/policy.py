"""The policy's engine on SGLang servers: they are given its weights after every update, and replaced when they fail."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from stacx_core.backends.model import stop_ids
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.errors import EngineError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.engine import SGLangEngine, limits_of
from stacx_core.rollout.sglang.launch import LaunchPlan
from stacx_core.rollout.sglang.pool import ServerPool, servers_of
from stacx_core.rollout.sglang.server import SGLangServer
from stacx_core.rollout.sglang.slot import Watch
from stacx_core.rollout.sglang.supervision import Supervisor
from stacx_core.rollout.sglang.teacher import served
from stacx_core.rollout.sglang.weights.plan import TrainedWeights
from stacx_core.rollout.sglang.weights.sync import WeightSync, make_transport

FOLDER = "sglang"
"""Of the run's folder: what the servers print, and weights that travel through the disk."""

logger = logging.getLogger(__name__)


class PolicyServers(SGLangEngine):
    """Generates on servers that hold the policy.

    A server that is restarted comes up with the checkpoint's weights. It is sent the policy's at a moment when those do
    not change, see :meth:`weights_at_rest`, and only then gets requests again.

    Args:
        pool: The servers.
        model: The policy.
        tokenizer: Of the policy.
        sync: Brings weights to servers.
        supervisor: Of servers that this run started, else ``None``.
    """

    def __init__(
        self,
        pool: ServerPool,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        sync: WeightSync,
        supervisor: Supervisor | None,
    ) -> None:
        vocabulary: int = model.config.get_text_config().vocab_size  # type: ignore[operator, union-attr]
        super().__init__(pool, stop_ids(model, tokenizer), vocabulary)
        self.sync = sync
        self.supervisor = supervisor
        self._model, self._version, self._closed = model, 0, False
        self._at_rest = threading.Lock()
        self._at_rest.acquire()
        if supervisor is not None:
            pool.on_lost = supervisor.restart
            supervisor.attach(self)

    @contextmanager
    def weights_at_rest(self) -> Iterator[None]:
        """See :class:`stacx_core.rollout.engine.RolloutEngine`."""
        self._at_rest.release()
        try:
            yield
        finally:
            self._at_rest.acquire()

    def update_weights(self, model: nn.Module, version: int) -> None:
        """See :class:`stacx_core.rollout.engine.RolloutEngine`.

        Raises:
            WeightSyncError: A server did not get them; what it holds is not to be sampled from.
        """
        self._model, self._version = model, version
        # Those that are being replaced get them on their return.
        if servers := self.pool.servers:
            with self.supervisor.quiet() if self.supervisor else nullcontext():
                self._send(servers)

    def _send(self, servers: Sequence[SGLangServer]) -> None:
        weights = TrainedWeights.of(self._model)
        report = self.pool.run(self.sync.update(servers, weights, str(self._version)))
        logger.info("weights of %d server(s): %s", len(servers), report)

    def lost(self, index: int, cause: EngineError) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`."""
        self.pool.lost(index, cause)

    def back(self, index: int, url: str) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`.

        Raises:
            EngineError: The server could not be given the weights, or the run is over.
        """
        with self._at_rest:
            if self._closed:
                raise EngineError("the run is over")
            self._send([SGLangServer(url)])
        self.pool.back(index, url)

    def gone(self, index: int, cause: EngineError) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`."""
        self.pool.gone(index, cause)

    def close(self) -> None:
        """End what is under way, and the servers that this run started."""
        super().close()
        self._closed = True
        with self.weights_at_rest():
            if self.supervisor is not None:
                self.supervisor.close()


def policy_servers(args: Args, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> PolicyServers:
    """The servers that the arguments name, or newly started ones.

    Args:
        args: The resolved knobs; either ``sglang_url`` or ``sglang_launch`` is set.
        model: The policy.
        tokenizer: Of the policy.

    Raises:
        ConfigError: A server's tokenizer gives an id another meaning, or the servers hold different models.
        EngineError: A server does not start or does not answer.
    """
    folder = Path(args.output_dir) / FOLDER
    supervisor = None
    if args.sglang_launch is None:
        servers = servers_of("--sglang-url", args.sglang_url)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        supervisor = Supervisor(LaunchPlan.of(args, args.hf_checkpoint, folder), args.sglang_launch, Watch.of(args))
        servers = [SGLangServer(url) for url in supervisor.start()]
    pool = ServerPool(servers, limits_of(args))
    if supervisor is None:
        _, tokens = served(pool, None)
        check_same_tokens("--sglang-url", tokens, args.hf_checkpoint, "the policy and its engine share token ids")
    transport = make_transport(args.update_weight_mode, folder / "weights")
    sync = WeightSync(transport, args.update_weight_buffer_size, args.sglang_timeout)
    return PolicyServers(pool, model, tokenizer, sync, supervisor)
