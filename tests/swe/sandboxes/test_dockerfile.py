"""Dockerfiles that can be followed without a container engine, and those that cannot."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacx_core.errors import DataError, SandboxError
from stacx_core.swe.sandboxes.bubblewrap_provider import BubblewrapProvider
from stacx_core.swe.sandboxes.docker_words import split_words
from stacx_core.swe.sandboxes.dockerfile import Copy, Run, read_dockerfile


def read(tmp_path: Path, text: str):
    """Read a Dockerfile with this text."""
    file = tmp_path / "Dockerfile"
    file.write_bytes(text.encode())
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
    assert [step.command for step in recipe.steps] == ["a   && b"]


def test_lines_as_other_systems_and_editors_write_them(tmp_path):
    recipe = read(
        tmp_path,
        "\ufeffFROM\ta\r\nWORKDIR\t/x\r\nRUN a && \\  \r\n  # inside\r\n\r\n  b \\\\\r\nRUN c\x0cd\u2028e\r\nRUN f \\",
    )
    assert recipe.workdir == "/x"
    assert [step.command for step in recipe.steps] == ["a &&   b \\\\", "c\x0cd\u2028e", "f"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=$V", "v"),
        ('A="$V  ${V}"', "v  v"),
        ("A='$V'", "$V"),
        (r"A=\$V\ w", "$V w"),
        (r'A="\$V\""', '$V"'),
        ("A=${N:-w}${E:-w}${E-w}${V:-w}", "wwv"),
        ("A=${V:+w}${E:+w}${E+x}${N:+w}", "wx"),
        ("A=${N:-${E:-${V}s}}", "vs"),
        ("A=/app/bin:$PATH", "/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("A=$HOME/x", "/home/agent/x"),
        ("A=a$", "a$"),
        ("A 'two  words' of $V", "two  words of v"),
        ("B=1 A=x C=2", "x"),
    ],
)
def test_quotes_and_variables(tmp_path, text, value):
    assert read(tmp_path, f"ARG V=v\nFROM a\nARG V\nENV E=\nENV {text}\n").env["A"] == value


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=20))
def test_a_quoted_word_stays_as_it_is(text):
    escaped = re.sub(r'(["\\$])', r"\\\1", text)
    assert split_words(f'a "{escaped}" b', {"x": "1"}) == ["a", text, "b"]


@given(st.text("ab $\"'\\{}:-+\n", max_size=12))
def test_every_text_has_words_or_is_refused(text):
    with contextlib.suppress(ValueError):
        assert all(isinstance(word, str) for word in split_words(text, {"a": "b"}))


def test_brackets_that_are_no_list_are_for_the_shell(tmp_path):
    recipe = read(tmp_path, 'FROM a\nRUN [ -d /x ] && y\nRUN ["a", "b c"]\nRUN echo $((1<<3)); cat <<<x\n')
    assert [step.command for step in recipe.steps] == ["[ -d /x ] && y", "a 'b c'", "echo $((1<<3)); cat <<<x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ENV A='b", "3: the bubblewrap sandbox cannot follow ENV A='b"),
        ("ENV", "'' is no name of a variable"),
        ("ENV A-B=1", "'A-B' is no name of a variable"),
        ("ENV A=${B#c}", r"changed in a way that is not known"),
        ("ENV A=${B", r"\$\{ has no end"),
        ("ARG =1", "'' is no name of a variable"),
        ("WORKDIR", "it names no folder"),
        ("WORKDIR $NOTHING", "it names no folder"),
        ('COPY "a b', '" has no end'),
        ("COPY --chmod=u+x a b", r"COPY --chmod=u\+x"),
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
        ("FROM x\nCOPY score.txt /etc/hosts\n", r"/etc/hosts lies in the host's own system"),
        ("FROM x\nWORKDIR /tests/x\n", r"/tests/x lies where everything is taken away before the tests"),
        ("FROM x\nCOPY a**b /app/\n", r"Dockerfile:2: 'a\*\*b' is no pattern"),
        ("FROM x\n#\0\n", r"Dockerfile has a zero byte in line 2"),
        ("# escape=`\nFROM x\n", r"Dockerfile:1: .* no escape but"),
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


def test_a_dockerfile_that_is_no_text(tmp_path):
    (tmp_path / "Dockerfile").write_bytes(b"FROM a\n# \xff\n")
    with pytest.raises(DataError, match="Dockerfile is not UTF-8"):
        read_dockerfile(tmp_path / "Dockerfile")


def test_an_environment_that_does_not_fit(provider, make_task):
    task = make_task(dockerfile="FROM x\nCOPY . /app/\n", storage=1)
    (task.environment / "large").write_bytes(bytes(1 << 20))
    with pytest.raises(DataError, match="storage_mb 1 is less than the 2 MiB that the environment copies in"):
        provider.check(task)


def test_a_copy_onto_a_folder_says_how_to_copy_into_it(provider, make_task):
    with pytest.raises(SandboxError, match=r"Is a directory: '/tmp'") as caught:
        provider.open(make_task(dockerfile="FROM x\nCOPY score.txt /tmp\n"))
    assert "end the target of COPY with /" in str(caught.value)


def test_what_a_build_closes_can_be_read(provider, make_task):
    build = "mkdir closed && echo kept > closed/file && chmod 000 closed/file closed"
    opened = provider.open(make_task(dockerfile=f"FROM x\nWORKDIR /my' app\nRUN {build}\n".replace("my' ", '"my"')))
    output = opened.run("cat closed/file", 30).output
    opened.close()
    assert output == "kept\n"
