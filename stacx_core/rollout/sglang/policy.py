"""The policy's engine on SGLang servers: they are given its weights after every update, and replaced when they fail."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from torch import nn
from transformers import PreTrainedTokenizerBase

from stacx_core.backends.model import stop_ids
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.errors import EngineError, WeightSyncError
from stacx_core.knobs import Args
from stacx_core.rollout.sglang.engine import SGLangEngine, limits_of
from stacx_core.rollout.sglang.health import Watch
from stacx_core.rollout.sglang.identity import served_paths
from stacx_core.rollout.sglang.launch import LaunchPlan
from stacx_core.rollout.sglang.pool import ServerPool, servers_of
from stacx_core.rollout.sglang.router import Router
from stacx_core.rollout.sglang.server import ServerSilent, SGLangServer
from stacx_core.rollout.sglang.supervision import Supervisor
from stacx_core.rollout.sglang.watching import HealthWatch
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
        servers: Which are given the weights.
        model: The policy.
        tokenizer: Of the policy.
        sync: Brings weights to servers.
        watcher: Of the servers: replaces those that this run started, and leaves out others while they are silent.
        router: In front of the servers; without one, requests go to them.
        scratch: A folder that only the servers need; removed when they are ended.
    """

    def __init__(
        self,
        servers: ServerPool,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        sync: WeightSync,
        watcher: Supervisor | HealthWatch,
        router: Router | None = None,
        scratch: Path | None = None,
    ) -> None:
        vocabulary: int = model.config.get_text_config().vocab_size  # type: ignore[operator, union-attr]
        pool = servers if router is None else router.pool
        super().__init__(pool, stop_ids(model, tokenizer), vocabulary, router=router)
        self.servers = servers
        self.sync = sync
        self.watcher = watcher
        self.scratch = scratch
        self.labels: dict[str, str] = {}
        # The servers may be another run's, too, by mistake: versions alone would not tell whose weights they have.
        self._run = uuid4().hex[:8]
        self._model, self._label, self._closed = model, "", False
        self._at_rest = threading.Lock()
        self._at_rest.acquire()
        servers.on_lost = watcher.restart
        watcher.attach(self)

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

        A server that does not answer, or stays too busy to say what it runs, is taken out; the others get the weights.

        Raises:
            WeightSyncError: A server answers that it did not take them; what it holds is not to be sampled from.
        """
        self._model, self._label = model, f"{version}-{self._run}"
        with self.watcher.quiet():
            self.labels[self._label] = str(version)
            while servers := self.servers.servers:
                try:
                    return self._send(servers)
                except WeightSyncError as error:
                    if not isinstance(error.__cause__, ServerSilent):
                        raise
                    self.pool.run(self.servers.take_out(error.url, error))
                    self._left(error)

    def _send(self, servers: Sequence[SGLangServer]) -> None:
        weights = TrainedWeights.of(self._model)
        report = self.pool.run(self.sync.update(servers, weights, self._label))
        logger.info("weights of %d server(s): %s", len(servers), report)

    def lost(self, index: int, cause: EngineError) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`."""
        self.servers.lost(index, cause)
        self._left(cause)

    def back(self, index: int, url: str) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`.

        Raises:
            EngineError: The server could not be given the weights, or the run is over.
        """
        with self._at_rest:
            if self._closed:
                raise EngineError("the run is over")
            self._send([SGLangServer(url)])
            # Before the next update, which otherwise leaves it out.
            self.servers.back(index, url)
        if self.router is not None:
            self.router.joined()

    def gone(self, index: int, cause: EngineError) -> None:
        """See :class:`stacx_core.rollout.sglang.slot.Rotation`."""
        self.servers.gone(index, cause)
        self._left(cause)

    def _left(self, cause: EngineError) -> None:
        if self.router is not None:
            self.router.left(cause)

    def close(self) -> None:
        """End what is under way, and the servers that this run started."""
        super().close()
        self._closed = True
        with self.weights_at_rest():
            self.watcher.close()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


def policy_servers(args: Args, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> PolicyServers:
    """The servers that the arguments name, or newly started ones.

    Args:
        args: The resolved knobs; either ``sglang_url`` or ``sglang_launch`` is set.
        model: The policy.
        tokenizer: Of the policy.

    Raises:
        ConfigError: A server's tokenizer gives an id another meaning.
        ModelError: A server's tokenizer cannot be read here.
        EngineError: A server does not start or does not answer.
    """
    folder = Path(args.output_dir) / FOLDER
    watcher, servers = _launched(args, folder) if args.sglang_url is None else _found(args)
    router = None if args.sglang_router is None else Router(args.sglang_router, servers)
    if router is not None:
        router.start()
    weights = folder / "weights"
    transport = make_transport(args.update_weight_mode, weights)
    limits = limits_of(args)
    sync = WeightSync(
        transport, args.update_weight_buffer_size, limits.timeout, args.sglang_health_timeout, limits.waits
    )
    # Servers that outlive the run go on to name it as their model's folder.
    scratch = weights if args.sglang_url is None else None
    return PolicyServers(servers, model, tokenizer, sync, watcher, router, scratch)


def _launched(args: Args, folder: Path) -> tuple[Supervisor, ServerPool]:
    folder.mkdir(parents=True, exist_ok=True)
    supervisor = Supervisor(LaunchPlan.of(args, args.hf_checkpoint, folder), args.sglang_launch, Watch.of(args))
    return supervisor, ServerPool([SGLangServer(url) for url in supervisor.start()], limits_of(args))


def _found(args: Args) -> tuple[HealthWatch, ServerPool]:
    flag = "--sglang-url"
    pool = ServerPool(servers_of(flag, args.sglang_url), limits_of(args))
    for tokenizer in {paths.tokenizer for paths in pool.run(served_paths(flag, pool))}:
        check_same_tokens(flag, tokenizer, args.hf_checkpoint, "the policy and its engine share token ids")
    return HealthWatch([server.url for server in pool.servers], Watch.of(args)), pool
