"""Dockerfiles that can be followed without a container engine, and those that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from stacx_core.errors import DataError
from stacx_core.swe.sandboxes.bubblewrap_provider import BubblewrapProvider
from stacx_core.swe.sandboxes.dockerfile import Copy, Run, read_dockerfile


def read(tmp_path: Path, text: str):
    """Read a Dockerfile with this text."""
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    return read_dockerfile(file)


def test_every_instruction(tmp_path):
    recipe = read(
        tmp_path,
        "FROM a\nWORKDIR /x\nWORKDIR y\nENV A=1 B='2 3'\nENV C 4 5\n"
        "COPY a b c/\nADD --chown=me f /f\nRUN echo $A\nEXPOSE 8",
    )
    env = {"A": "1", "B": "2 3", "C": "4 5"}
    assert recipe.workdir == "/x/y"
    assert recipe.env == env
    assert recipe.steps == (
        Copy(("a", "b"), "/x/y/c", True, None, 6),
        Copy(("f",), "/f", False, None, 7),
        Run("echo $A", "/x/y", env),
    )


def test_variables_and_continuation_lines(tmp_path):
    recipe = read(
        tmp_path, "ARG V=2\nFROM a\nENV P=/opt/$V\nWORKDIR ${P}/${NONE:-z}\n# c\nRUN a \\\n# inside\n  && b\n"
    )
    assert recipe.workdir == "/opt/2/z"
    assert [step.command for step in recipe.steps] == ["a    && b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("USER me", "3: the bubblewrap sandbox cannot follow USER"),
        ("ENTRYPOINT x", "ENTRYPOINT"),
        ("VOLUME /x", "VOLUME"),
        ("HEALTHCHECK CMD x", "HEALTHCHECK"),
        ("FROM b", "a second FROM"),
        ("COPY --from=b x y", "COPY --from=b"),
        ("ADD https://example.org/x /x", "ADD of https://example.org/x"),
        ("ADD x.tar.gz /x", r"ADD of the archive x\.tar\.gz"),
        ("RUN --mount=type=cache x", "RUN --mount=type=cache"),
        ("RUN <<EOF", "RUN with a here-document"),
        ("COPY x", "COPY 'x'"),
        ('RUN ["a", 1]', "RUN"),
    ],
)
def test_what_only_a_container_engine_can_do(tmp_path, line, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, f"FROM a\n\n{line}\n")


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        ("FROM x\nCOPY nothing /app/\n", r"Dockerfile:2: there is no 'nothing' in"),
        ("FROM x\nCOPY ../solution /app/\n", r"Dockerfile:2: '\.\./solution' lies outside of"),
        ("FROM x\nWORKDIR /usr/src/app\n", r"/usr/src/app lies in the host's own system"),
        ("FROM x\nCOPY score.txt /bin/\n", r"/bin lies in the host's own system"),
    ],
)
def test_what_check_refuses(provider: BubblewrapProvider, make_task, dockerfile, message):
    with pytest.raises(DataError, match=message):
        provider.check(make_task(dockerfile=dockerfile))


def test_folders_and_patterns(provider, make_task):
    task = make_task(
        dockerfile="FROM x\nWORKDIR /w\nCOPY . /all\nCOPY d /d\nCOPY d/*.py many/\nCOPY score.txt renamed\n"
    )
    (task.environment / "d" / "e").mkdir(parents=True)
    for name in ("d/a.py", "d/b.py", "d/e/c"):
        (task.environment / name).write_text(name)
    opened = provider.open(task)
    output = opened.run("cd /; find all d w -type f | sort", 30).output
    opened.close()
    assert output.split() == [
        *("all/Dockerfile", "all/d/a.py", "all/d/b.py", "all/d/e/c", "all/score.txt"),
        *("d/a.py", "d/b.py", "d/e/c", "w/many/a.py", "w/many/b.py", "w/renamed"),
    ]
