"""Knobs of rollouts on SGLang servers."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args, Knob

OURS = ("--model-path", "--model", "--host", "--port", "--nccl-port", "--served-model-name", "--api-key")
"""Arguments of a server that the launcher chooses."""


def _server_arguments(text: str) -> str | None:
    try:
        names = {word.partition("=")[0] for word in shlex.split(text)}
    except ValueError as error:
        return f"is no list of arguments: {error}"
    taken = [name for name in OURS if name in names]
    return f"sets {', '.join(taken)}, which Stacx chooses for the servers it starts" if taken else None


SGLANG_KNOBS: tuple[Knob, ...] = (
    Knob("rollout_engine", str, "local", "What generates: local in this process, or SGLang servers that are given the "
         "policy's weights after every update.", "sglang", choices=("local", "sglang")),
    Knob("max_staleness", int, 0, "Make rollouts ahead while training, so that their tokens are by weights at most so "
         "many updates old; 0 generates, then trains.", "sglang", minimum=0),
    Knob("sglang_url", str, None, "URL of each running SGLang server, separated by commas.", "sglang"),
    Knob("sglang_router", str, None, "URL of a running sglang-router, which is sent the requests for the servers of "
         "--sglang-url.", "sglang"),
    Knob("sglang_concurrency", int, 64, "Most requests under way at one server.", "sglang", minimum=1),
    Knob("sglang_retries", int, 5, "How often a request, and a server that failed, is tried again.", "sglang",
         minimum=0),
    Knob("sglang_retry_wait", float, 0.5, "Seconds before a server that failed is tried again, doubled each time.",
         "sglang", minimum=0),
    Knob("sglang_timeout", float, 600.0, "Seconds for the answer to one request.", "sglang", exclusive_minimum=0),
    Knob("sglang_launch", int, None, "Start and supervise so many SGLang servers on this node.", "sglang", minimum=1),
    Knob("sglang_python", str, None, "Interpreter that has sglang; unset takes the one that runs Stacx.", "sglang"),
    Knob("sglang_module", str, "sglang.launch_server", "Module that starts a server.", "sglang"),
    Knob("sglang_args", str, "", "Further arguments of each server; {index} stands for its number, from 0.", "sglang",
         check=_server_arguments),
    Knob("sglang_start_timeout", float, 600.0, "Seconds for a server to become ready.", "sglang",
         exclusive_minimum=0),
    Knob("sglang_health_interval", float, 5.0, "Seconds between two looks at a server's health.", "sglang",
         exclusive_minimum=0),
    # A look takes SGLang a second.
    Knob("sglang_health_timeout", float, 60.0, "Seconds without a sign of health after which a server is restarted, "
         "or left out until it shows one if this run did not start it.", "sglang", minimum=2),
    Knob("sglang_max_restarts", int, 3, "How often a server is restarted; then the run goes on without it.", "sglang",
         minimum=0),
    Knob("update_weight_mode", str, "disk", "How weights reach SGLang servers: tensor posts them, distributed "
         "broadcasts them (gloo or NCCL), disk writes a checkpoint that the servers read.", "sglang",
         choices=("disk", "tensor", "distributed")),
    Knob("update_weight_buffer_size", int, 512 * 2**20, "Most bytes of weights that are on their way to the engine at "
         "once.",
         "sglang", minimum=1),
)  # fmt: skip

_LAUNCHED = ("sglang_python", "sglang_module", "sglang_args", "sglang_start_timeout", "sglang_max_restarts")
"""Of servers that the run starts itself."""


def check_sglang(args: Args) -> None:
    """Refuse what an engine needs and lacks, or has and would ignore.

    Raises:
        ConfigError: Naming the flag and the ways out.
    """
    servers = [name for name in ("sglang_url", "sglang_launch") if args.get(name) is not None]
    if args.rollout_engine == "sglang" and len(servers) != 1:
        raise ConfigError(
            "--rollout-engine sglang needs either --sglang-url, for servers that run already, or --sglang-launch, for "
            f"servers of its own; {'both are' if servers else 'neither is'} set"
        )
    if args.sglang_router is not None and args.sglang_launch is not None:
        raise ConfigError(
            "--sglang-router needs servers that are named by --sglang-url; those of --sglang-launch are at other ports "
            "after every restart, so start them and the router yourself, or leave --sglang-router out"
        )
    for knob in SGLANG_KNOBS:
        if getattr(args, knob.name) == knob.default or args.is_default(knob.name):
            continue
        of_teacher = knob.name == "sglang_concurrency" and args.get("teacher") == "sglang"
        given = knob.env if args.origin(knob.name) == "environment" else knob.flag
        spread = args.get("role_workers") == "ray" or args.get("backend") == "megatron"
        of_roles = knob.name == "update_weight_buffer_size" and spread
        if args.rollout_engine != "sglang" and not of_teacher and not of_roles:
            raise ConfigError(f"{given} has no effect without --rollout-engine sglang; add it, or leave it out")
        if knob.name in _LAUNCHED and args.sglang_launch is None:
            raise ConfigError(f"{given} is of servers that --sglang-launch starts; add that, or leave it out")
    if args.sglang_launch is not None:
        _check_launcher(args.sglang_python or sys.executable, args.sglang_module)


def _check_launcher(python: str, module: str) -> None:
    """Refuse what cannot start a server, without starting one.

    Raises:
        ConfigError: This is no Linux, the interpreter cannot run, or it lacks the module.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigError("--sglang-launch needs Linux; start the servers yourself and name them with --sglang-url")
    if shutil.which(python) is None:
        raise ConfigError(f"--sglang-python {python!r} is no program; name an interpreter that has sglang")
    package = module.partition(".")[0]
    if subprocess.run([python, "-c", _FIND, package], stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise ConfigError(
            f"{python} has no module {package!r} to start a server with; name an interpreter that has sglang with "
            "--sglang-python"
        )


_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
"""A program that fails when there is no package of that name."""
