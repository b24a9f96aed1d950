"""The command of a harness: its name or its words, and what is filled in for an episode."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from stacx_core.errors import ConfigError, nearest

HARNESSES = {
    "mini-swe": (
        "mini",
        "MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=1 MSWEA_COST_TRACKING=ignore_errors "
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=3 LITELLM_LOCAL_MODEL_COST_MAP=True "
        "{program} --model=openai/{model} --yolo --exit-immediately --cost-limit=0 "
        "--environment-class=docker --output={folder}/trajectory.json --config=mini.yaml "
        "--config=environment.image={task} --config=environment.executable={sandbox} "
        "--config=environment.cwd={workdir} --config=environment.timeout={longest_command} --task={instruction}",
    ),
}
"""Name -> the program, and the command with ``{program}`` in its place."""

PLACEHOLDERS = ("task", "instruction", "task_file", "folder", "sandbox", "workdir", "longest_command", "model",
                "base_url", "key")  # fmt: skip
"""What a command may have in braces:

- ``task``, ``instruction``, ``task_file``: the task's name, what is asked, and a file with that;
- ``folder``: the harness's own folder on this machine, its home and where it starts, gone when it has ended;
- ``sandbox``: a program that runs commands in the task's sandbox, by the words of ``docker exec``;
- ``workdir``: the folder in the sandbox that is worked in;
- ``longest_command``: whole seconds within which a command in the sandbox has certainly ended;
- ``model``, ``base_url``, ``key``: of the endpoint; the key belongs into a variable, where nobody else can read it."""

_PLACE = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_OWN = ("PYTHON", "XDG_", "OPENAI_", "VIRTUAL_ENV")
"""Beginnings of variables that a harness does not inherit: it has another Python and a home of its own."""


@dataclass(frozen=True)
class Harness:
    """A command to run once per episode.

    Args:
        words: Of the command.
        variables: Of its environment.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]

    def command(self, values: Mapping[str, str]) -> list[str]:
        """The words, with a value for each of ``PLACEHOLDERS`` filled in."""
        return [_filled(word, values) for word in self.words]

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        """All variables: this process's, but for those of its Python; where the endpoint is; the command's own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        url, home = values["base_url"], values["folder"]
        endpoint = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": values["key"]}
        own = {name: _filled(value, values) for name, value in self.variables.items()}
        no_proxy = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        return {**inherited, **no_proxy, "HOME": home, **endpoint, "OPENAI_MODEL": values["model"], **own}


def load_harness(text: str) -> Harness:
    """The harness that ``--harness`` names.

    Args:
        text: ``mini-swe``, perhaps with the program, as in ``mini-swe:/opt/mini/bin/mini``; or a command in the words
            of a shell, perhaps behind assignments of variables, with ``PLACEHOLDERS``. No shell runs it. Words that
            are files are found from where the run is started.

    Raises:
        ConfigError: It cannot be read, has an unknown placeholder, or its program is not there.
    """
    name, _, program = text.partition(":")
    if name in HARNESSES:
        usual, text = HARNESSES[name]
        text = text.replace("{program}", shlex.quote(program or usual))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--harness {text!r} is no command: {error}") from error
    variables: dict[str, str] = {}
    while words and (found := _VARIABLE.fullmatch(words[0])):
        variables[found[1]] = found[2]
        del words[0]
    _check_places([*words, *variables.values()])
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(
            f"--harness: there is no program {words[0] if words else ''!r}{nearest(name, HARNESSES)}",
            f"name an installed harness ({', '.join(HARNESSES)}), with its program as in mini-swe:/PATH/bin/mini, or "
            'give a command, as in --harness "python agent.py {task_file}"',
        )
    # It starts in a folder of its own, and the files that it was given lie here.
    return Harness(tuple(os.path.abspath(word) if os.path.isfile(word) else word for word in words), variables)


def _check_places(words: list[str]) -> None:
    for place in (place for word in words for place in _PLACE.findall(word)):
        if place not in PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ConfigError(f"--harness: {{{place}}} means nothing{nearest(place, PLACEHOLDERS)}; there are {known}")


def _filled(word: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: values[found[1]], word)
