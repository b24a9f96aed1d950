"""Sandboxes of a container engine with Docker's command line."""

from __future__ import annotations

import subprocess
import threading
import uuid

from stacx_core.errors import ConfigError, DataError, SandboxError
from stacx_core.swe.sandboxes.machine import machine_memory
from stacx_core.swe.sandboxes.shell_sandbox import ShellSandbox
from stacx_core.swe.tasks import Task

MAX_PROCESSES = 256
_PATIENCE = 60.0
_LABEL = "stacx-sandbox"


class DockerSandbox(ShellSandbox):
    """A running container.

    Args:
        task: The task that it is for.
        container: Its name.
        workdir: The working folder of its image.
    """

    def __init__(self, task: Task, container: str, workdir: str) -> None:
        super().__init__(task, workdir)
        self._container = container

    def execute(self, script: str, seconds: float, data: bytes = b"") -> tuple[int, bytes]:
        """See ``ShellSandbox``."""
        arguments = ["docker", "exec", "-i", self._container, "bash", "-c", script]
        done = _docker(arguments, seconds + _PATIENCE, data)
        # 125 and more: the engine itself failed.
        if done.returncode >= 125 and b"container" in done.stderr.lower():
            raise _failure(f"the container of {self._task.name} is gone", done)
        return done.returncode, done.stdout

    def end_processes(self) -> None:
        """See ``Sandbox``: the container starts again with the files that it has."""
        done = _docker(["docker", "restart", "--time", "0", self._container], _PATIENCE)
        if done.returncode:
            raise _failure(f"the container of {self._task.name} does not start again", done)

    def close(self) -> None:
        """See ``Sandbox``."""
        _docker(["docker", "rm", "--force", "--volumes", self._container], _PATIENCE)


class DockerProvider:
    """Makes containers, from the image that ``task.toml`` names or from the task's Dockerfile.

    Raises:
        ConfigError: There is no command ``docker``, or no engine that answers it.
    """

    def __init__(self) -> None:
        try:
            done = _docker(["docker", "version", "--format", "{{.Server.Version}}"], _PATIENCE)
        except FileNotFoundError as error:
            raise ConfigError(
                "the docker sandbox needs the command docker, which is not installed", "use the bubblewrap sandbox"
            ) from error
        if done.returncode:
            raise ConfigError(f"the docker sandbox needs a running engine: {_last_line(done)}")
        self._lock, self._images = threading.Lock(), dict[str, str]()

    def open(self, task: Task) -> DockerSandbox:
        """See ``SandboxProvider``."""
        image, name = self._image(task), f"{_LABEL}-{uuid.uuid4().hex[:12]}"
        done = _docker(run_arguments(task, image, name), _PATIENCE)
        if done.returncode:
            raise _failure(f"the container of {task.name} does not start", done)
        where = _docker(["docker", "inspect", "--format", "{{.Config.WorkingDir}}", name], _PATIENCE)
        return DockerSandbox(task, name, where.stdout.decode().strip() or "/")

    def check(self, task: Task) -> None:
        """See ``SandboxProvider``."""
        if task.docker_image is None and not (task.environment / "Dockerfile").is_file():
            raise DataError(f"{task.folder}: the docker sandbox needs environment/Dockerfile or docker_image")
        if self.capacity(task) < 1:
            raise DataError(f"{task.folder / 'task.toml'}: memory_mb {task.limits.memory_mb} is more than this machine")

    def capacity(self, task: Task) -> int:
        """See ``SandboxProvider``."""
        return machine_memory() // (task.limits.memory_mb << 20)

    def _image(self, task: Task) -> str:
        if task.docker_image is not None:
            return task.docker_image
        self.check(task)
        with self._lock:
            if task.name not in self._images:
                done = _docker(["docker", "build", "--quiet", str(task.environment)], task.limits.build_timeout)
                if done.returncode:
                    raise _failure(f"the image of {task.name} cannot be built", done)
                self._images[task.name] = done.stdout.decode().strip()
        return self._images[task.name]


def run_arguments(task: Task, image: str, name: str) -> list[str]:
    """The command line that starts a container.

    Its first process reaps others and ends by itself some time after the longest episode, so that a container whose
    owner was killed does not stay.
    """
    limits = task.limits
    seconds = int(limits.agent_timeout + limits.verifier_timeout) + 3600
    waits = f"end=$((SECONDS + {seconds})); while [ $SECONDS -lt $end ]; do sleep 10 & wait $!; done"
    return [
        *("docker", "run", "--detach", "--name", name, "--label", _LABEL, "--network", "none"),
        *("--cpus", str(limits.cpus), "--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
        *("--pids-limit", str(MAX_PROCESSES), "--security-opt", "no-new-privileges"),
        *("--entrypoint", "bash", image, "-c", waits),
    ]


def _docker(arguments: list[str], seconds: float, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(arguments, input=data, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{' '.join(arguments[:2])} did not end within {seconds:g} s") from error


def _failure(what: str, done: subprocess.CompletedProcess[bytes]) -> SandboxError:
    return SandboxError(f"{what}: {_last_line(done)}")


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
