"""Whether the checkpoint that a server read is whole: SGLang starts without the weights that one lacks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from stacx_core.errors import ConfigError
from stacx_core.rollout.sglang.weights.served import layout_of


def check_whole(flag: str, folder: str) -> None:
    """Refuse a folder whose safetensors lack weights of its config's model.

    Nothing is known, and nothing refused, of what is not a folder of this machine, is quantised, or names its weights
    in another way.

    Args:
        flag: What names the server.
        folder: That the server says it read.

    Raises:
        ConfigError: Naming the first weight that is not there.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    config = AutoConfig.from_pretrained(folder) if files else None
    if config is None or getattr(config, "quantization_config", None) is not None:
        return
    try:
        found = {name for file in files for name in _names(file)}
        layout = layout_of(config)
    except (OSError, ValueError, KeyError, SafetensorError):
        return
    names: dict[str, set[str]] = defaultdict(set)
    for alias, first in layout.aliases.items():
        names[first].add(alias)
    absent = sorted(first for first in layout.shapes if not ({first} | names[first]) & found)
    if absent and 2 * len(absent) < len(layout.shapes):
        raise ConfigError(
            f"{flag}: the model's folder {folder!r} lacks {len(absent)} weights, first {absent[0]!r}, and SGLang "
            "answers with whatever is in their place; start the server with a whole checkpoint"
        )


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as opened:
        return list(opened.keys())
