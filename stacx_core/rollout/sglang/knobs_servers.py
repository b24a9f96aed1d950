"""Knobs of the SGLang servers that a run starts itself."""

from __future__ import annotations

import shlex

from stacx_core.knobs import Knob

OURS = ("--model-path", "--model", "--host", "--port", "--nccl-port", "--served-model-name", "--api-key")
"""Arguments of a server that the launcher chooses."""


def _server_arguments(text: str) -> str | None:
    try:
        names = {word.partition("=")[0] for word in shlex.split(text)}
    except ValueError as error:
        return f"is no list of arguments: {error}"
    taken = [name for name in OURS if name in names]
    return f"sets {', '.join(taken)}, which Stacx chooses for the servers it starts" if taken else None


SERVER_KNOBS: tuple[Knob, ...] = (
    Knob("sglang_launch", int, None, "Start and supervise so many SGLang servers on this node.", "sglang", minimum=1),
    Knob("sglang_python", str, None, "Interpreter that has sglang; unset takes the one that runs Stacx.", "sglang"),
    Knob("sglang_module", str, "sglang.launch_server", "Module that starts a server.", "sglang"),
    Knob("sglang_args", str, "", "Further arguments of each server; {index} stands for its number, from 0.", "sglang",
         check=_server_arguments),
    Knob("sglang_start_timeout", float, 600.0, "Seconds for a server to become ready.", "sglang",
         exclusive_minimum=0),
    Knob("sglang_health_interval", float, 5.0, "Seconds between two looks at a server's health.", "sglang",
         exclusive_minimum=0),
    Knob("sglang_health_timeout", float, 60.0, "Seconds without a sign of health after which a server is restarted.",
         "sglang", exclusive_minimum=0),
    Knob("sglang_max_restarts", int, 3, "How often a server is restarted; then the run goes on without it.", "sglang",
         minimum=0),
)  # fmt: skip
