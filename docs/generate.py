"""Writes the reference pages from the code: `python docs/generate.py`, or `--check` to fail on a difference.

Below each comment `output of: stacx ...` of an explanation it writes what that command prints. Only the host and the
plugins of this repository are described, whatever else is installed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stacx_core import ExitCode, StacxError, errors, hookspecs
from stacx_core.batch_keys import BATCH_KEYS
from stacx_core.cli import main as stacx
from stacx_core.cli.recipe_page import recipe_page
from stacx_core.cli.run import COMMANDS
from stacx_core.config import resolve_object
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import PLUGIN_VARIABLES, Knob
from stacx_core.plugin_selection import PluginSelection
from stacx_core.plugins import HOST, PluginHost, ProvidedRecipe
from stacx_core.testing import CHECKS

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
LAUNCHERS = ROOT / "scripts" / "train" / "swe"
NOTICE = "<!-- Written by docs/generate.py; change the code it describes instead. -->"

EXIT_CODES = {
    ExitCode.OK: "The command did what it was asked to do.",
    ExitCode.RUN_FAILED: "The run failed: a reward function, a checkpoint, a batch that breaks its contract.",
    ExitCode.USAGE: "Wrong usage: a flag, a configuration key, a name, a data file or a model folder.",
    ExitCode.PLUGIN: "What was asked for is in a plugin that is broken, switched off or in a clash.",
    ExitCode.NON_FINITE: "A loss, a gradient or a reward is NaN or infinite. The weights are untouched.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C or SIGTERM, after a checkpoint was saved.",
}


def distributions() -> list[str]:
    """Names of the plugin distributions of this repository."""
    files = sorted(ROOT.glob("plugins/*/pyproject.toml"))
    return [tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"] for file in files]


def recipes() -> list[ProvidedRecipe]:
    """Their recipes and the host's, sorted by name."""
    names = distributions()
    host = PluginHost(PluginSelection.gather(enable=",".join(names), environ={}))
    host.load()
    host.require_sound()
    return [recipe for recipe in host.recipes if recipe.plugin.distribution in (HOST.distribution, *names)]


def pages() -> dict[str, str]:
    """File name -> text of every reference page."""
    provided = recipes()
    return {
        "batch-keys.md": batch_keys_page(),
        "checks.md": checks_page(),
        "command-line.md": command_line_page(),
        "exit-codes.md": exit_codes_page(),
        "hooks.md": hooks_page(),
        "knobs.md": knobs_page(provided),
        "recipes.md": recipes_page(provided),
    }


def page(title: str, *parts: str) -> str:
    """A page from its title and its parts, with an empty line between any two."""
    return "\n\n".join((f"# {title}", NOTICE, *parts)) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what would end a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: object) -> str:
    """Text in a code span."""
    return f"`{text}`"


def batch_keys_page() -> str:
    """Every key of the training batch."""
    return page(
        "Batch keys",
        inspect.cleandoc(sys.modules["stacx_core.batch_keys"].__doc__ or ""),
        "The keys are listed in the order in which the stages of a run write them.",
        table(
            ("Key", "Per sample", "Written by", "Meaning"),
            [(code(key.name), code(key.element), key.producer, key.description) for key in BATCH_KEYS.values()],
        ),
    )


def checks_page() -> str:
    """Every check of the conformance suite."""
    scopes = {
        "recipe": "once",
        "defaults": "the defaults",
        "main": "the defaults, everything on",
        "every": "every switch and choice",
    }
    rows = [(code(c.name), c.holds, c.finds, scopes[c.scope], "yes" if c.waivable else "no") for c in CHECKS.values()]
    return page(
        "Checks",
        "What `stacx check` and `stacx_core.testing.RecipeConformance` look at, in this order; "
        "[Check a recipe](../how-to/check-a-recipe.md) says how to use them. *Under* says with which arguments a check "
        "runs, and *waivable* whether a specialization may say that the property is not meant to hold for it.",
        table(("Check", "What must hold", "What it finds", "Under", "Waivable"), rows),
    )


def knobs_page(provided: Sequence[ProvidedRecipe]) -> str:
    """Every knob of the host and of each plugin."""
    parts = [
        "A knob is set by its flag, its environment variable or its key in the file given to `--config`; the "
        "first of these three that is there wins, then the recipe's default, then the default below. "
        f"{', '.join(map(code, PLUGIN_VARIABLES))} and the table `[plugins]` choose plugins and are no knobs.",
        *sections(HOST_KNOBS),
    ]
    for distribution in distributions():
        own = {k: None for r in provided if r.plugin.distribution == distribution for k in r.config.knobs}
        parts += [f"## Knobs of {distribution}", *sections(own, level=3)]
    return page("Knobs", *parts)


def sections(knobs: Iterable[Knob], level: int = 2) -> Iterator[str]:
    """A heading and a table for each section."""
    by_section: dict[str, list[Knob]] = {}
    for knob in knobs:
        by_section.setdefault(knob.section, []).append(knob)
    for section, members in by_section.items():
        yield f"{'#' * level} [{section}]"
        rows = [(code(k.flag), code(k.env), k.type.__name__, default(k.default), knob_help(k)) for k in members]
        yield table(("Flag", "Environment variable", "Type", "Default", "Meaning"), rows)


def knob_help(knob: Knob) -> str:
    """The knob's sentence, and the values it takes."""
    bounds = [
        f"one of {', '.join(map(code, knob.choices))}" if knob.choices else "",
        f"at least {knob.minimum:g}" if knob.minimum is not None else "",
        f"more than {knob.exclusive_minimum:g}" if knob.exclusive_minimum is not None else "",
        f"at most {knob.maximum:g}" if knob.maximum is not None else "",
    ]
    allowed = ", ".join(bound for bound in bounds if bound)
    return f"{knob.help} ({allowed})" if allowed else knob.help


def default(value: Any) -> str:
    """A default as it is written in a configuration file."""
    return "unset" if value is None else code(str(value).lower() if isinstance(value, bool) else value)


def recipes_page(provided: Sequence[ProvidedRecipe]) -> str:
    """What `stacx show-recipe` says about each recipe, without the host's knobs."""
    return page("Recipes", *(part for recipe in provided for part in recipe_parts(recipe)))


def recipe_parts(provided: ProvidedRecipe) -> Iterator[str]:
    """The section of one recipe."""
    shown = recipe_page(provided)
    yield f"## {shown['name']}"
    yield f"{shown['description']}. From {code(shown['distribution'])}, family {shown['family'] or 'none'}."
    yield table(
        ("Role", "Specialization", "Trained", "Weights to the engine", "Checkpoint"),
        [
            (
                r["name"],
                code(r["specialization"]),
                yes(r["trainable"]),
                yes(r["sync_to_rollout"]),
                code(r["checkpoint"]),
            )
            for r in shown["roles"]
        ],
    )
    stages = ", then ".join(code(stage["stage"]) for stage in shown["advantage_pipeline"])
    own_defaults = {k["flag"]: k["default"] for k in shown["knobs"] if k["recipe_default"]}
    yield "\n".join(
        (
            f"- Rollout: {code(shown['rollout'])}",
            f"- Syncs: {', '.join(code(sync['text']) for sync in shown['syncs']) or 'none'}",
            f"- Whole-batch stages: {stages or 'none'}",
            f"- Aggregation: {code(shown['aggregation']['default'])}",
            f"- Must be set: {', '.join(map(code, shown['requires']))}",
            f"- Own defaults: {', '.join(f'`{flag} {value}`' for flag, value in own_defaults.items()) or 'none'}",
            f"- Own knobs: {', '.join(code(knob.flag) for knob in provided.config.knobs) or 'none'}",
        )
    )
    yield table(
        ("Reads", "Per sample", "Written by", "When"),
        [
            (code(key["key"]), code(key["element"]), key["written_by"], " or ".join(map(code, key["when"])) or "always")
            for key in shown["batch_keys"]
        ],
    )


def yes(flag: bool) -> str:
    """A switch in words."""
    return "yes" if flag else "no"


def hooks_page() -> str:
    """Every hook with its signature and its contract, in the order in which a run reaches them."""
    intro = (
        "A plugin implements a hook by a function of the same name, marked with `hookimpl`, in the module its entry "
        "point names. It may leave out arguments it does not need."
    )
    version = f"The plugin API has version {hookspecs.API_VERSION}; a plugin made for another one says `STACX_API = N`."
    hooks = [part for hook in hook_functions() for part in (f"## {hook.__name__}", *hook_parts(hook))]
    return page("Hooks", intro, version, *hooks)


def hook_functions() -> list[Any]:
    """The hook specifications in the order of the source."""
    return [f for f in vars(hookspecs).values() if hasattr(f, f"{hookspecs.PROJECT}_spec")]


def hook_parts(hook: Any) -> Iterator[str]:
    """Signature, first paragraph, and the labelled lines of the docstring as a list."""
    signature = inspect.signature(hook)
    parameters = "".join(f"    {p.name}: {p.annotation},\n" for p in signature.parameters.values())
    arguments = f"\n{parameters}" if parameters else ""
    yield f"```python\ndef {hook.__name__}({arguments}) -> {signature.return_annotation}\n```"
    summary, _, rest = inspect.cleandoc(hook.__doc__ or "").partition("\n\n")
    yield " ".join(summary.split())
    lines: list[str] = []
    for line in rest.splitlines():
        label = re.fullmatch(r"(    )?(\w[\w ,]*):(?: (.*))?", line)
        if label:
            indent, name, text = label.groups()
            marked = code(name) if indent else f"**{name}**"
            lines.append(f"{'  ' if indent else ''}- {marked}: {text or ''}".rstrip())
        else:
            lines[-1] += " " + line.strip()
    yield "\n".join(lines)


def exit_codes_page() -> str:
    """Every exit code and the exceptions that end in it."""
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, StacxError)]
    rows = [
        (str(int(exit_code)), meaning, ", ".join(code(c.__name__) for c in classes if c.exit_code is exit_code))
        for exit_code, meaning in EXIT_CODES.items()
    ]
    return page("Exit codes", table(("Code", "Meaning", "Exceptions"), rows))


def command_line_page() -> str:
    """The help of every command."""
    commands = [(), *(path for name in COMMANDS for path in command_paths(name))]
    parts = [p for command in commands for p in (f"## {' '.join(('stacx', *command))}", help_text(*command))]
    note = "`stacx train --algorithm NAME --help` adds the knobs of a recipe, which [Knobs](knobs.md) lists too."
    return page("Command line", note, *parts)


def command_paths(name: str) -> list[tuple[str, ...]]:
    """A command, and the commands below it."""
    return [(name,), *((name, below) for below in getattr(resolve_object(COMMANDS[name][0]), "commands", {}))]


def help_text(*command: str) -> str:
    """What `--help` prints, 80 columns wide, in an environment without settings of Stacx."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
    done = subprocess.run(
        [sys.executable, "-m", "stacx_core", *command, "--help"],
        env={**clean, "COLUMNS": "80", "STACX_PLUGINS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```text\n{done.stdout.strip()}\n```"


def variables_page(provided: Sequence[ProvidedRecipe]) -> str:
    """Every environment variable of the launchers for coding agents, from the table that they read."""
    knobs = {knob.flag: knob for knob in (*HOST_KNOBS, *(k for r in provided for k in r.config.knobs))}
    parts: list[str] = []
    rows: list[tuple[str, ...]] = []
    for line in (LAUNCHERS / "variables.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            rows = []
            parts += [f"## {line.strip('[]')}", ""]
        elif line and not line.startswith("#"):
            rows.append(_variable([column.strip() for column in line.split("|")], knobs))
            parts[-1] = table(("Variable", "Read by", "Default", "With `SMOKE=1`", "Flag", "Meaning"), rows)
    return page(
        "Variables of the launchers",
        "A launcher reads these environment variables and runs `stacx train`; flags behind its name are passed on and "
        "win. `LAUNCHER` is its name, such as `grpo_4b`; `HERE` is this folder, and `EXAMPLES` is "
        "`examples/swe_tasks`. A variable that is set and empty means unset. Where several lines of a variable are for "
        "a launcher, the first one counts. "
        "[Train a coding agent](../../../docs/how-to/train-a-coding-agent.md) says how to use them.",
        *parts,
    )


def _variable(columns: Sequence[str], knobs: Mapping[str, Knob]) -> tuple[str, ...]:
    """A line of the table; one without a meaning has that of its flag."""
    name, readers, usual, smoke, flag, meaning = columns
    bare = flag.strip("()")
    told = meaning or knob_help(knobs[bare])
    return code(name), readers, default(usual or None), default(smoke or None), code(bare) if bare else "", told


def explanations() -> dict[Path, str]:
    """Path -> text of every explanation, the outputs in it as they are now."""
    paths = sorted((ROOT / "docs" / "explanation").glob("*.md"))
    return {path: OUTPUT.sub(_output, path.read_text(encoding="utf-8")) for path in paths}


OUTPUT = re.compile(r"^(<!-- output of: stacx ([^\n]+) -->\n```text\n).*?^```$", re.M | re.S)


def _output(block: re.Match[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exit_code = stacx(block[2].split())
    if exit_code:
        raise RuntimeError(f"stacx {block[2]} ended with exit code {exit_code}")
    return f"{block[1]}{printed.getvalue().strip()}\n```"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or compare them with what is there; returns the exit code."""
    written = {
        **{REFERENCE / name: text for name, text in pages().items()},
        LAUNCHERS / "ENV_REFERENCE.md": variables_page(recipes()),
        **explanations(),
    }
    stale = [path for path, text in written.items() if current(path) != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date; run python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(written[path], encoding="utf-8")
    return 0


def current(path: Path) -> str:
    """The page on disk, "" if there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
