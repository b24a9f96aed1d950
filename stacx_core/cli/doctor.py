"""`stacx doctor`: one report on the environment that works however broken it is."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Any

import click

from stacx_core import __version__
from stacx_core.cli.options import (
    config_option,
    finish_report,
    json_option,
    load_leniently,
    plugin_options,
)
from stacx_core.cli.output import print_json, print_table, print_title
from stacx_core.plugins import UNUSABLE, PluginHost

LIBRARIES = ("torch", "transformers", "pluggy", "click")

EXTRAS = {
    "data": "pyarrow",
    "megatron": "megatron-core",
    "plot": "matplotlib",
    "ray": "ray",
    "reasoning-gym": "reasoning-gym",
    "sglang": "sglang",
    "textarena": "textarena",
    "wandb": "wandb",
}
"""Extra of stacx-core -> the distribution it brings."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")

DEVICE_TIMEOUT_S = 120
_ASK_DEVICES = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


@click.command("doctor")
@json_option
@plugin_options
@config_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check versions, extras, devices, threads and plugins.

    The report itself never fails: what is broken is listed under problems.
    """
    host = load_leniently(ctx)
    report = diagnose(host)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    finish_report(ctx, host)


def diagnose(host: PluginHost) -> dict[str, Any]:
    """Return the report as a document that serialises to JSON."""
    devices, device_problem = _devices()
    report: dict[str, Any] = {
        "versions": {
            "python": platform.python_version(),
            "stacx-core": __version__,
            **{name: _version(name) for name in LIBRARIES},
        },
        "extras": [
            {
                "name": extra,
                "distribution": distribution,
                "version": _version(distribution),
                "install": f"pip install 'stacx-core[{extra}]'",
            }
            for extra, distribution in EXTRAS.items()
        ],
        "devices": devices,
        "threads": {
            "cpus": os.cpu_count(),
            "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            **{name: os.environ.get(name) for name in THREAD_VARIABLES},
        },
        "plugins": [asdict(record) for record in host.records],
    }
    report["problems"] = _problems(report, device_problem)
    return report


def _problems(report: dict[str, Any], device_problem: str) -> list[str]:
    problems = [
        f"{row['distribution']} {row['version']}: {row['status']}: {row['reason']}"
        for row in report["plugins"]
        if row["status"] in UNUSABLE
    ]
    missing = [name for name in LIBRARIES if report["versions"][name] is None]
    problems += [f"{name} is not installed: pip install {name}" for name in missing]
    return problems + ([device_problem] if device_problem else [])


def _devices() -> tuple[list[str], str]:
    """Return the names of the GPUs, and why they could not be asked for ("" if they could).

    torch is imported in a process of its own, so that a broken torch cannot take the report down.
    """
    command = [sys.executable, "-c", _ASK_DEVICES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEVICE_TIMEOUT_S, check=True)
        return list(json.loads(done.stdout)), ""
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        return [], f"torch could not be asked for devices: {last}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [], f"torch could not be asked for devices: {error}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _print_report(report: dict[str, Any]) -> None:
    print_title("Versions")
    print_table(("PACKAGE", "VERSION"), [(k, v or "missing") for k, v in report["versions"].items()])
    print_title("Extras")
    print_table(
        ("EXTRA", "STATUS", "INSTALL"),
        [
            (row["name"], f"{row['distribution']} {row['version'] or 'missing'}", row["install"])
            for row in report["extras"]
        ],
    )
    print_title("Devices")
    click.echo("\n".join(report["devices"]) or "CPU only")
    print_title("Threads")
    print_table(("SETTING", "VALUE"), [(k, "unset" if v is None else str(v)) for k, v in report["threads"].items()])
    print_title("Plugins")
    print_table(
        ("NAME", "FROM", "VERSION", "STATUS"),
        [(row["name"], row["distribution"], row["version"], row["status"]) for row in report["plugins"]],
    )
    print_title("Problems")
    click.echo("\n".join(report["problems"]) or "none")
