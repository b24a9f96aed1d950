"""What the sandboxes of container engines share: everything is a bash script with bytes on its standard input."""

from __future__ import annotations

import base64
import binascii
import errno
import posixpath
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from stacx_core.errors import SandboxError
from stacx_core.swe.sandboxes.layers import folder_archive
from stacx_core.swe.sandboxes.sandbox import OUTPUT_LIMIT, CommandResult, command_result
from stacx_core.swe.tasks import Task

_REFUSALS = {10: (errno.ELOOP, "a link"), 11: (errno.EINVAL, "no regular file"), 12: (errno.EFBIG, "too long")}


class ShellSandbox(ABC):
    """A sandbox in which bash and the GNU core utilities can be run.

    Args:
        task: The task that it is for.
        workdir: The folder that commands start in.
    """

    def __init__(self, task: Task, workdir: str) -> None:
        self.workdir, self._task = workdir, task

    @abstractmethod
    def execute(self, script: str, seconds: float, data: bytes = b"") -> tuple[int, bytes]:
        """Run a bash script.

        Args:
            script: What follows ``bash -c``.
            seconds: It takes no longer.
            data: Its standard input.

        Returns:
            Exit code and standard output.

        Raises:
            SandboxError: The sandbox is gone or does not answer.
        """

    @abstractmethod
    def end_processes(self) -> None:
        """See ``Sandbox``."""

    @abstractmethod
    def close(self) -> None:
        """See ``Sandbox``."""

    def run(self, command: str, timeout: float, env: Mapping[str, str] | None = None) -> CommandResult:
        """See ``Sandbox``."""
        script = bounded_script(command, timeout, self.workdir, {**self._task.env, **(env or {})}, self._task)
        begun = time.monotonic()
        code, output = self.execute(script, timeout)
        first, _, rest = output.partition(b"\n")
        try:
            exit_code, size = map(int, first.split())
        except ValueError as error:
            raise SandboxError(
                f"the sandbox of {self._task.name} could not run a command (exit code {code})",
                output.decode(errors="replace")[-200:],
            ) from error
        late = exit_code in (124, 137) and time.monotonic() - begun >= timeout
        answer = {"exit_code": exit_code, "limit": "time" if late else "", "cut": max(0, size - OUTPUT_LIMIT)}
        half = OUTPUT_LIMIT - OUTPUT_LIMIT // 2
        return command_result(answer, rest[:half], rest[half:])

    def write(self, path: str, data: bytes, executable: bool = False) -> None:
        """See ``Sandbox``."""
        place = posixpath.join(self.workdir, path)
        folder, file, mode = (shlex.quote(text) for text in (posixpath.dirname(place), place, "755"))
        mode = "755" if executable else "644"
        self._files(f"mkdir -p {folder} && cat > {file} && chmod {mode} {file}", data, place)

    def read(self, path: str, limit: int = 1 << 20) -> bytes:
        """See ``Sandbox``."""
        place = posixpath.join(self.workdir, path)
        file = shlex.quote(place)
        output = self._files(
            f"[ ! -L {file} ] || exit 10; [ -e {file} ] || exit 2; [ -f {file} ] || exit 11; "
            f"[ $(stat -c %s {file}) -le {limit} ] || exit 12; base64 < {file}",
            b"",
            place,
        )
        try:
            return base64.b64decode(output)
        except binascii.Error as error:
            raise SandboxError(f"the sandbox of {self._task.name} sent what is no base64") from error

    def copy_in(self, folder: Path, target: str) -> None:
        """See ``Sandbox``."""
        place = shlex.quote(posixpath.join(self.workdir, target))
        self._files(f"mkdir -p {place} && tar -xf - -C {place} --no-same-owner", folder_archive(folder), target)

    def empty(self, *folders: str) -> None:
        """See ``Sandbox``."""
        places = shlex.join(folders)
        # A link in the place of the folder is taken away, not followed.
        script = f"for f in {places}; do [ -L $f ] && rm $f; mkdir -p $f; find $f -mindepth 1 -delete; done"
        self._files(script, b"", places)

    def _files(self, script: str, data: bytes, path: str) -> bytes:
        code, output = self.execute(script, 600.0, data)
        if code:
            number, text = _REFUSALS.get(code, (errno.ENOENT if code == 2 else errno.EIO, f"exit code {code}"))
            raise OSError(number, text, path)
        return output


def bounded_script(command: str, timeout: float, cwd: str, env: Mapping[str, str], task: Task) -> str:
    """A script that runs a command within its limits.

    It prints a line of exit code and output size in bytes, then the output, or its first and last bytes if it is longer
    than ``OUTPUT_LIMIT``.
    """
    half = OUTPUT_LIMIT // 2
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    kilobytes = task.limits.storage_mb * 1024
    return (
        f"o=$(mktemp); ( cd {shlex.quote(cwd)}; ulimit -f {kilobytes}; "
        f"exec env {variables} timeout -k 5 {timeout:g} bash -c {shlex.quote(command)} ) > $o 2>&1 < /dev/null; "
        f"c=$?; s=$(stat -c %s $o); echo $c $s; "
        f"if [ $s -le {OUTPUT_LIMIT} ]; then cat $o; else head -c {OUTPUT_LIMIT - half} $o; tail -c {half} $o; fi; "
        "rm -f $o"
    )
