"""What a sandbox is filled with: the files of a task as archives, and the commands between them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from stacx_core.errors import DataError
from stacx_core.swe.sandboxes.dockerfile import Copy, Recipe, Run, read_dockerfile
from stacx_core.swe.tasks import Task

DEFAULT_WORKDIR = "/app"
"""Where the files of ``environment`` go when the task has no Dockerfile."""
_TIME = 1_000_000_000
"""Modification time of all files, so that the same files make the same archive."""
_FORMAT = b"2"
"""Other archives than those of this format are not kept environments of ours."""

Layer = bytes | Run
"""A tar archive to unpack into /, or a command to run."""


def environment_recipe(task: Task) -> Recipe:
    """How the environment of a task is made.

    Raises:
        DataError: The Dockerfile has something that only a container engine can do.
    """
    file = task.environment / "Dockerfile"
    if file.exists():
        return read_dockerfile(file)
    files = sorted(path.name for path in task.environment.iterdir()) if task.environment.is_dir() else []
    steps = (Copy(tuple(files), DEFAULT_WORKDIR, True, None, 0),) if files else ()
    return Recipe(steps, DEFAULT_WORKDIR)


def environment_layers(task: Task, recipe: Recipe) -> list[Layer]:
    """The layers of an environment, in order.

    Raises:
        DataError: A file that is to be copied is not there, or lies elsewhere.
    """
    if (task.environment / ".dockerignore").exists():
        raise DataError(f"{task.environment / '.dockerignore'} is not followed by the bubblewrap sandbox; take it away")
    return [step if isinstance(step, Run) else _copied(task, step) for step in recipe.steps]


def folder_archive(folder: Path) -> bytes:
    """A tar archive of what is in a folder; links stay links."""
    return _archive({path.name: path for path in sorted(folder.iterdir())})


def folders_archive(folders: Iterable[str]) -> bytes:
    """A tar archive of empty folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in filter(lambda name: name != "/", folders):
            member = tarfile.TarInfo(name.strip("/"))
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, _TIME
            archive.addfile(member)
    return buffer.getvalue()


def content_hash(layers: Iterable[Layer]) -> str:
    """A name for what the layers make on this system."""
    system = Path("/etc/os-release")
    found = hashlib.sha256(_FORMAT + (system.read_bytes() if system.is_file() else b""))
    for layer in layers:
        data = layer if isinstance(layer, bytes) else repr(layer).encode()
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()[:32]


def _copied(task: Task, step: Copy) -> bytes:
    members: dict[str, Path] = {}
    for source in step.sources:
        for path in _found(task, source, step.line):
            if path.is_dir() and not path.is_symlink() and step.line:
                members |= {f"{step.target}/{inner.name}": inner for inner in sorted(path.iterdir())}
            else:
                members[f"{step.target}/{path.name}" if step.into else step.target] = path
    return _archive(members, step.mode)


def _found(task: Task, pattern: str, line: int) -> list[Path]:
    root = task.environment.resolve()
    where = f"{task.environment / 'Dockerfile'}:{line}"
    clean = pattern.lstrip("/")
    try:
        found = sorted(task.environment.glob(clean)) if clean.strip("./") else [task.environment]
    except ValueError as error:
        raise DataError(f"{where}: {pattern!r} is no pattern: {error}") from error
    if not found:
        raise DataError(f"{where}: there is no {pattern!r} in {task.environment}")
    for path in found:
        if not path.resolve().is_relative_to(root):
            raise DataError(f"{where}: {pattern!r} lies outside of {task.environment}")
    return found


def _archive(members: Mapping[str, Path], mode: int | None = None) -> bytes:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = _TIME
        if mode is not None and member.isfile():
            member.mode = mode
        # Whoever the sandbox runs as owns the files and can read and change them.
        member.mode |= 0o700 if member.isdir() else 0o600
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, path in members.items():
            archive.add(path, name.strip("/"), filter=plain)
    return buffer.getvalue()
