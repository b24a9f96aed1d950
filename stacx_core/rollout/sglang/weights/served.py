"""What a server runs: its model, the names and shapes of that model's weights, and how it holds them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from stacx_core.backends.weights import checkpoint_tensors, first_names
from stacx_core.errors import EngineError, WeightSyncError
from stacx_core.rollout.sglang.server import ServerBusy, ServerSilent

logger = logging.getLogger(__name__)


class WeightServer(Protocol):
    """One server. Both calls raise an `EngineError` that names its address unless the answer's status is 200."""

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""

    async def get(self, path: str, timeout: float) -> Any:
        """Ask for JSON; ``timeout`` is in seconds."""

    async def post(self, path: str, body: Any, timeout: float) -> Any:
        """Send JSON, and return the JSON of the answer; ``timeout`` is in seconds."""


@dataclass(frozen=True)
class Layout:
    """The weights of a model under the names of its checkpoints.

    Args:
        shapes: Of each weight, the first name of those that are one tensor.
        aliases: Further names of a tensor, such as a tied head, and its first name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, str]


@dataclass(frozen=True)
class ServedModel:
    """A server and the model that it runs.

    Args:
        server: How to talk to it.
        path: Folder or hub id of the weights that it read last.
        config: Of the model.
        layout: Of its weights.
        dtype: In which it holds them, or ``None`` when it chose by itself.
        device: ``cpu``, ``cuda`` ...
        tp_size: Processes among which each weight is split.
        dp_size: Copies of the model behind the address.
        plain: It holds the weights in one piece and as they are: nothing split, packed or quantised.
        version: The label of its weights.
    """

    server: WeightServer
    path: str
    config: PreTrainedConfig
    layout: Layout
    dtype: torch.dtype | None
    device: str
    tp_size: int
    dp_size: int
    plain: bool
    version: str

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url

    async def post(self, path: str, body: Any, timeout: float, failure: str, *hints: str) -> Any:
        """The server's answer.

        Args:
            path: Starts with a slash.
            body: Sent as JSON.
            timeout: Seconds for the answer.
            failure: What it means when the server does not do as asked.
            hints: Further lines of the message then.

        Raises:
            WeightSyncError: It does not.
        """
        with _blaming(self.url, failure, *hints):
            answer = await self.server.post(path, body, timeout)
            if isinstance(answer, dict) and not answer.get("success", True):
                raise EngineError(f"{self.url}{path}: {answer.get('message')}")
            return answer


async def ask(server: WeightServer, timeout: float, waits: Sequence[float] = ()) -> ServedModel:
    """Ask a server what it runs, and read that model's config.

    Args:
        server: Which.
        timeout: Seconds for an answer.
        waits: Seconds before it is asked again when it is too busy to answer, once for each.

    Raises:
        WeightSyncError: It does not answer, or the config cannot be read on this machine.
    """
    with _blaming(server.url, "a server does not say what it runs"):
        model = await _patiently(server, "/model_info", timeout, waits)
        about = await _patiently(server, "/server_info", timeout, waits)
    try:
        config = AutoConfig.from_pretrained(model["model_path"])
        layout = _layout(config.model_type, config.to_json_string())
    except (OSError, ValueError, KeyError) as error:
        raise WeightSyncError(
            f"{server.url} runs the model {model['model_path']!r}, whose config cannot be read here: {error}",
            "names and shapes are compared before weights are sent: put the folder at the same path on both machines",
            url=server.url,
        ) from error
    return ServedModel(
        server,
        model["model_path"],
        config,
        layout,
        _dtype(about.get("dtype", "auto"), config),
        str(about.get("device", "cuda")),
        int(about.get("tp_size", 1)),
        int(about.get("dp_size", 1)),
        about.get("quantization") is None and about.get("tp_size", 1) == about.get("pp_size", 1) == 1,
        str(model.get("weight_version")),
    )


async def _patiently(server: WeightServer, path: str, timeout: float, waits: Sequence[float]) -> Any:
    for wait in waits:
        try:
            return await server.get(path, timeout)
        except ServerBusy as error:
            logger.warning("%s", error)
            await asyncio.sleep(wait)
    try:
        return await server.get(path, timeout)
    except ServerBusy as error:
        raise ServerSilent(f"{error}, asked {len(waits) + 1} time(s)") from error


@contextmanager
def _blaming(url: str, failure: str, *hints: str) -> Iterator[None]:
    """Say what a server's error means here."""
    try:
        yield
    except EngineError as error:
        raise WeightSyncError(f"{failure}: {error}", *hints, url=url) from error


@lru_cache(maxsize=8)
def _layout(model_type: str, text: str) -> Layout:
    """The layout of a config's model, built without memory for its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type].from_dict(json.loads(text)))
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint_tensors(model).items()}
    return Layout(shapes, {name: first for name, first in first_names(model).items() if name != first})


def _dtype(name: str, config: PreTrainedConfig) -> torch.dtype | None:
    """The dtype of ``--dtype NAME``; ``auto`` takes the checkpoint's, except that fp32 becomes a half precision."""
    found = getattr(config, "dtype", None) if name == "auto" else getattr(torch, _SHORT.get(name, name), None)
    if not isinstance(found, torch.dtype) or (name == "auto" and found == torch.float32):
        return None
    return found


_SHORT = {"half": "float16", "float": "float32"}
