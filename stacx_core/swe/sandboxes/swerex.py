"""Sandboxes of the package swe-rex, which runs containers here or on machines elsewhere."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from stacx_core.errors import ConfigError, DataError, SandboxError, nearest
from stacx_core.swe.sandboxes.shell_sandbox import ShellSandbox
from stacx_core.swe.tasks import Task

KINDS = {"docker": "DockerDeployment", "modal": "ModalDeployment", "fargate": "FargateDeployment",
         "daytona": "DaytonaDeployment"}  # fmt: skip
"""What comes after ``swerex:``, and the class of swe-rex behind it."""
_PATIENCE = 60.0
_START = 600.0
# All but process 1 and the processes that this script itself runs in, swe-rex's server among them.
_END_OTHERS = """
keep=" 1 "; p=$$
while [ "$p" -gt 1 ]; do keep="$keep$p "; read -r _ _ _ p _ < /proc/$p/stat; done
for round in 1 2 3; do for d in /proc/[0-9]*; do
  case "$keep" in *" ${d#/proc/} "*) ;; *) kill -9 ${d#/proc/} ;; esac
done; done 2> /dev/null; true
"""


class SwerexSandbox(ShellSandbox):
    """A deployment of swe-rex that has been started.

    Args:
        task: The task that it is for.
        workdir: The folder that commands start in.
        deployment: The deployment.
        wait: Runs a coroutine of it for at most some seconds.
    """

    def __init__(self, task: Task, workdir: str, deployment: Any, wait: Callable[..., Any]) -> None:
        super().__init__(task, workdir)
        self._deployment, self._wait = deployment, wait

    def execute(self, script: str, seconds: float, data: bytes = b"") -> tuple[int, bytes]:
        """See ``ShellSandbox``."""
        from swerex.runtime.abstract import Command, UploadRequest

        if data:
            place = "/tmp/.stacx-input"
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                self._wait(
                    self._deployment.runtime.upload(UploadRequest(source_path=file.name, target_path=place)), _PATIENCE
                )
            script = f"{{ {script}\n}} < {place}"
        command = Command(command=["bash", "-c", script], timeout=seconds + _PATIENCE)
        done = self._wait(self._deployment.runtime.execute(command), seconds + 2 * _PATIENCE)
        return done.exit_code, done.stdout.encode()

    def end_processes(self) -> None:
        """See ``Sandbox``."""
        self.execute(_END_OTHERS, _PATIENCE)

    def close(self) -> None:
        """See ``Sandbox``."""
        self._wait(self._deployment.stop(), _PATIENCE)


class SwerexProvider:
    """Makes deployments of swe-rex.

    Args:
        kind: One of ``KINDS``; the image is that of the task.
        deploy: Makes the deployment of a task instead, with options of your own.
        workdir: The folder that commands start in.

    Raises:
        ConfigError: The package is not installed, or there is no such kind.
    """

    def __init__(
        self, kind: str = "docker", deploy: Callable[[Task], Any] | None = None, workdir: str = "/app"
    ) -> None:
        if kind not in KINDS:
            raise ConfigError(f"swe-rex has no {kind!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}")
        try:
            importlib.import_module("swerex")
        except ImportError as error:
            raise ConfigError("the swerex sandbox needs the package swe-rex: pip install swe-rex") from error
        self._deploy, self._workdir = deploy or _deployment_of(kind), workdir
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="stacx-swerex", daemon=True).start()

    def open(self, task: Task) -> SwerexSandbox:
        """See ``SandboxProvider``."""
        deployment = self._deploy(task)
        self._wait(deployment.start(), _START)
        return SwerexSandbox(task, self._workdir, deployment, self._wait)

    def check(self, task: Task) -> None:
        """See ``SandboxProvider``."""
        if task.docker_image is None:
            raise DataError(f"{task.folder / 'task.toml'}: environment.docker_image: swe-rex needs a ready image")

    def capacity(self, task: Task) -> int:
        """See ``SandboxProvider``; elsewhere there is no limit that is known here."""
        return 1 << 16

    def _wait(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return future.result()
        except Exception as error:  # swe-rex has no base class of its own, and lets those of aiohttp through
            raise SandboxError(f"swe-rex: {type(error).__name__}: {error}") from error


def _deployment_of(kind: str) -> Callable[[Task], Any]:
    def deploy(task: Task) -> Any:
        module = importlib.import_module(f"swerex.deployment.{kind}")
        return getattr(module, KINDS[kind])(image=task.docker_image)

    return deploy
