"""Makes bubblewrap sandboxes: namespaces, mounts, limits, and the environment of the task."""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
import shutil
import subprocess
import textwrap
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stacx_core.errors import ConfigError, DataError, SandboxError
from stacx_core.swe.sandboxes import supervisor
from stacx_core.swe.sandboxes.bubblewrap import BubblewrapSandbox
from stacx_core.swe.sandboxes.dockerfile import HOME, Recipe, Run
from stacx_core.swe.sandboxes.layers import (
    Layer,
    content_hash,
    environment_layers,
    environment_recipe,
    folders_archive,
)
from stacx_core.swe.sandboxes.machine import machine_memory, processors
from stacx_core.swe.sandboxes.sandbox import LOGS, TESTS
from stacx_core.swe.sandboxes.seccomp import seccomp_program
from stacx_core.swe.tasks import Task

MIB = 1 << 20
_READABLE = (
    "find / -xdev -type d ! -perm -700 -exec chmod u+rwx {} ';'; "
    "find / -xdev -type f ! -perm -600 -exec chmod u+rw {} +"
)
"""Whoever the sandbox runs as can read and change what a build made, as it can what was copied."""
MAX_PROCESSES = 128
"""Processes and threads of a sandbox."""
MAX_FILES = 100_000
_FIRST_UID, _UIDS = 60_706, 478
"""Users that a root process runs sandboxes as; no distribution and no systemd gives them to anybody."""
_SHARED_MEMORY, _LOGS_SIZE, _TESTS_SIZE = 64 * MIB, 16 * MIB, 16 * MIB
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf",
        "os-release", "protocols", "services", "ssl/certs", "pki/tls/certs")  # fmt: skip
_ACCOUNTS = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:{HOME}:/bin/bash\n",
    "/etc/group": "root:x:0:\nagent:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
_FOLDERS = ("tmp", "var/tmp", "run", HOME)
_EMPTIED = (TESTS, LOGS)
_READ_ONLY = ("/usr", "/proc", "/dev", "/etc", *(f"/{name}" for name in _SYSTEM))


class BubblewrapProvider:
    """Makes sandboxes on this machine.

    Args:
        read_only: Further folders of the host that every sandbox sees, read-only, at the same place; ``/usr``, some
            of ``/etc`` and nothing else is seen anyway.
        cache: Where environments are kept whose Dockerfile runs commands; the user's cache folder by default.

    Raises:
        ConfigError: Bubblewrap or a Python in ``/usr`` is not installed, or this kind of processor is not known.
    """

    def __init__(self, read_only: Sequence[Path | str] = (), cache: Path | None = None) -> None:
        self._program, self._python = _programs()
        self._filter = seccomp_program()
        self._read_only = [str(Path(folder).absolute()) for folder in read_only]
        self._cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stacx/environments"
        self._lock, self._building, self._used = threading.Lock(), threading.Lock(), set[int]()

    def open(self, task: Task) -> BubblewrapSandbox:
        """See ``SandboxProvider``."""
        recipe = environment_recipe(task)
        layers = environment_layers(task, recipe)
        self._refuse_places(task, recipe)
        if not any(isinstance(layer, Run) for layer in layers):
            return self._opened(task, recipe, layers)
        file = self._cache / f"{content_hash(layers)}.tar"
        built = self._built(task, layers, file)
        try:
            return self._opened(task, recipe, [built])
        except SandboxError as error:
            raise SandboxError(
                error.message, *error.hints, f"if {file} is damaged, delete it to make it anew"
            ) from error

    def check(self, task: Task) -> None:
        """See ``SandboxProvider``."""
        recipe = environment_recipe(task)
        layers = environment_layers(task, recipe)
        self._refuse_places(task, recipe)
        size = sum(len(layer) for layer in layers if isinstance(layer, bytes))
        if size > task.limits.storage_mb * MIB:
            raise DataError(
                f"{task.folder / 'task.toml'}: storage_mb {task.limits.storage_mb} is less than the "
                f"{math.ceil(size / MIB)} MiB that the environment copies in"
            )
        if self.capacity(task) < 1:
            limits = task.limits
            raise DataError(
                f"{task.folder / 'task.toml'}: memory_mb {limits.memory_mb} and storage_mb {limits.storage_mb} are "
                f"more than this machine's {machine_memory() // MIB} MiB of memory, which hold both"
            )

    def capacity(self, task: Task) -> int:
        """See ``SandboxProvider``."""
        fixed = _SHARED_MEMORY + _LOGS_SIZE + _tests_size(task)
        return machine_memory() // ((task.limits.memory_mb + task.limits.storage_mb) * MIB + fixed)

    def _refuse_places(self, task: Task, recipe: Recipe) -> None:
        kinds = {
            "in the host's own system, which a bubblewrap sandbox sees read-only": (*_READ_ONLY, *self._read_only),
            "where everything is taken away before the tests": _EMPTIED,
        }
        for place in [recipe.workdir, *(step.target for step in recipe.steps if not isinstance(step, Run))]:
            for kind, tops in kinds.items():
                if any(place == top or place.startswith(f"{top}/") for top in tops):
                    raise DataError(
                        f"{task.environment / 'Dockerfile'}: {place} lies {kind}", "use a folder such as /app"
                    )

    def _built(self, task: Task, layers: list[Layer], file: Path) -> bytes:
        """The archive of an environment whose commands have run; made once."""
        try:
            with self._building:
                if not file.is_file():
                    self._cache.mkdir(parents=True, exist_ok=True)
                    self._build(task, layers, file)
            return file.read_bytes()
        except OSError as error:
            raise SandboxError(
                f"the environment of {task.name} cannot be kept in {self._cache}: {error.strerror}",
                "set XDG_CACHE_HOME to a folder that can be written",
            ) from error

    def _build(self, task: Task, layers: list[Layer], file: Path) -> None:
        sandbox = self._opened(task, Recipe(), layers)
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            sandbox.end_processes()
            sandbox.run_in("/", _READABLE, task.limits.build_timeout)
            with part.open("wb") as stream:
                sandbox.pack(stream)
            part.rename(file)
        finally:
            part.unlink(missing_ok=True)
            sandbox.close()

    def _opened(self, task: Task, recipe: Recipe, layers: list[Layer]) -> BubblewrapSandbox:
        slot = self._take_slot()
        try:
            process = _spawner(os.getpid()).submit(self._start, task, slot).result()
        except BaseException:
            self._used.discard(slot)
            raise
        env = {**recipe.env, **task.env}
        limits = _rlimits(task)
        sandbox = BubblewrapSandbox(process, task.name, recipe.workdir, env, limits, lambda: self._used.discard(slot))
        try:
            sandbox.unpack(folders_archive((*_FOLDERS, recipe.workdir)))
            for layer in layers:
                _apply(sandbox, layer, task)
        except BaseException as error:
            sandbox.close()
            if isinstance(error, OSError):
                hint = ("end the target of COPY with / where it is a folder",) * isinstance(error, IsADirectoryError)
                raise SandboxError(f"the environment of {task.name} cannot be made: {error}", *hint) from error
            raise
        return sandbox

    def _take_slot(self) -> int:
        with self._lock:
            slot = next(number for number in range(len(self._used) + 1) if number not in self._used)
            self._used.add(slot)
        return slot

    def _start(self, task: Task, slot: int) -> subprocess.Popen[bytes]:
        """Start bubblewrap; runs in the thread that starts them all, whose processors the sandbox inherits."""
        os.sched_setaffinity(0, _processors(task.limits.cpus, slot))
        filtered, *accounts = readers = [_piped(data) for data in (self._filter, *map(str.encode, _ACCOUNTS.values()))]
        files = [str(word) for pair in zip(accounts, _ACCOUNTS, strict=True) for word in ("--ro-bind-data", *pair)]
        user = _FIRST_UID + slot % _UIDS if os.geteuid() == 0 else None
        try:
            return subprocess.Popen(
                [*bubblewrap_arguments(self._program, task, self._read_only), *files, "--remount-ro", "/etc",
                 "--seccomp", str(filtered), "--", self._python, "-I", "-S", "-c", _supervisor_text(), _settings(task)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd="/", env={}, pass_fds=readers, start_new_session=True,
                user=user, group=user, extra_groups=None if user is None else (),
            )  # fmt: skip
        finally:
            for reader in readers:
                os.close(reader)


def bubblewrap_arguments(program: str, task: Task, read_only: Sequence[str] = ()) -> list[str]:
    """The command line of bubblewrap, up to the files of its own in ``/etc``, its filter and the command.

    Args:
        program: Path of bubblewrap.
        task: Says how much may be written.
        read_only: Further folders that are seen.
    """
    arguments = [program, "--unshare-user", "--unshare-all", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
                 "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]  # fmt: skip
    arguments += _sized("/", task.limits.storage_mb * MIB)
    arguments += ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        # Mounts, where the host has links: a link in a folder of the agent could be replaced, and bash with it.
        if (place := Path("/", name)).is_dir():
            arguments += ["--ro-bind", str(place), str(place)]
    arguments += _sized("/etc", MIB)
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for folder in read_only:
        arguments += ["--ro-bind", folder, folder]
    arguments += ["--proc", "/proc", "--dev", "/dev", *_sized("/dev/shm", _SHARED_MEMORY), "--remount-ro", "/dev"]
    return [*arguments, *_sized(TESTS, _tests_size(task)), *_sized(LOGS, _LOGS_SIZE), "--chdir", "/"]


def _piped(data: bytes) -> int:
    """A descriptor from which some data can be read that fits into a pipe."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def _sized(folder: str, size: int) -> list[str]:
    return ["--size", str(size), "--tmpfs", folder]


def _tests_size(task: Task) -> int:
    return _TESTS_SIZE + 2 * sum(path.lstat().st_size for path in task.tests.rglob("*"))


def _apply(sandbox: BubblewrapSandbox, layer: Layer, task: Task) -> None:
    if isinstance(layer, bytes):
        sandbox.unpack(layer)
        return
    sandbox.run_in("/", f"mkdir -p {shlex.quote(layer.cwd)}", task.limits.build_timeout)
    result = sandbox.run_in(layer.cwd, layer.command, task.limits.build_timeout, layer.env)
    if result.exit_code or result.timed_out:
        raise SandboxError(
            f"the environment of {task.name} cannot be made: RUN {textwrap.shorten(layer.command, 200)} "
            + ("took too long" if result.timed_out else f"ended with exit code {result.exit_code}"),
            *result.output.strip().splitlines()[-3:],
            "a bubblewrap sandbox has no network and sees the host's /usr read-only",
        )


def _rlimits(task: Task) -> dict[str, int]:
    limits = task.limits
    longest = max(limits.agent_timeout, limits.verifier_timeout, limits.build_timeout)
    return {
        "RLIMIT_NPROC": MAX_PROCESSES,
        "RLIMIT_DATA": limits.memory_mb * MIB,
        "RLIMIT_FSIZE": limits.storage_mb * MIB,
        "RLIMIT_CPU": int(longest * limits.cpus) + 1,
        "RLIMIT_NOFILE": 1024,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 1 << 16,
        "RLIMIT_MSGQUEUE": 0,
    }


def _settings(task: Task) -> str:
    return json.dumps(
        {
            "memory": task.limits.memory_mb * MIB,
            "files": MAX_FILES,
            "writable": ["/", TESTS, LOGS, "/dev/shm"],
        }
    )


def _processors(count: int, slot: int) -> set[int]:
    """Which processors a sandbox runs on; neighbours get different ones as far as there are some."""
    mine = processors()
    return {mine[(slot * count + number) % len(mine)] for number in range(min(count, len(mine)))}


def _programs() -> tuple[str, str]:
    program = shutil.which("bwrap")
    if program is None:
        raise ConfigError(
            "the bubblewrap sandbox needs bubblewrap, which is not installed",
            "install it (apt install bubblewrap, dnf install bubblewrap), or use the docker sandbox",
        )
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None:
        raise ConfigError("the bubblewrap sandbox needs a Python 3.9 or newer as /usr/bin/python3; install python3")
    return program, python


@functools.cache
def _supervisor_text() -> str:
    return Path(supervisor.__file__).read_text(encoding="utf-8")


@functools.cache
def _spawner(process: int) -> ThreadPoolExecutor:
    """The thread that starts the sandboxes of a process: the kernel ends them when the thread that did ends."""
    return ThreadPoolExecutor(1, f"stacx-sandboxes-{process}")
