"""Every check, one session each. `nox` runs those of CI_SESSIONS; `nox --list` shows all.

Checks of the source run in the environment nox was started from, the one `requirements.txt` describes. Wheels
are tested in fresh environments that hold nothing a package does not declare.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).parent
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
TORCH = next(line for line in REQUIREMENTS if line.startswith("torch=="))
HARNESS = "mini-swe-agent==2.4.6"
SGLANG = "sglang==0.5.23"

CI_SESSIONS = ("lint", "types", "docs", "parallel", "trl", "harness", "wheels", "sglang")
"""What CI runs after the README's test command."""

nox.needs_version = ">=2025.5"
nox.options.sessions = CI_SESSIONS

RECIPES = {
    "stacx-core": ["sft"],
    "stacx-plugin-dagger": ["mixture_aggrevate_opd", "mixture_dagger_opd", "online_dagger"],
    "stacx-plugin-distill": ["opd", "self_distill"],
    "stacx-plugin-grpo": ["cispo", "dapo", "grpo", "gspo", "ppo", "reinforce_pp", "reinforce_pp_baseline", "rloo"],
    "stacx-plugin-diffusion": ["diffusion_nft", "flow_distill", "flow_dpo", "flow_grpo", "flow_sft", "mix_grpo"],
    "stacx-plugin-preference": ["dpo", "reward_model"],
    "stacx-plugin-reinforce": ["reinforce"],
    "stacx-plugin-regression": ["least_squares"],
}
"""Distribution -> the recipes it brings, which its wheel must list beside the host's and no others."""

TEST_TOOLS = ("hypothesis", "pytest")
LITTER = shutil.ignore_patterns("*.egg-info", "__pycache__", "build", "dist", ".*")

LISTING = """
import contextlib, io, json, sys
from stacx_core.cli import main
with contextlib.redirect_stdout(io.StringIO()) as listing:
    code = main(["list-recipes", "--json"])
rows = [(row["name"], row["status"]) for row in json.loads(listing.getvalue())]
expected = [(name, "loaded") for name in sorted(json.loads(sys.argv[1]))]
assert code == 0 and rows == expected, (code, rows, expected)
assert "torch" not in sys.modules, "listing recipes imported torch"
"""


@dataclass(frozen=True)
class Package:
    """A distribution of this repository.

    Args:
        name: of the distribution.
        folder: where its `pyproject.toml` is.
        tests: files and folders with its tests, relative to `folder`.
        needs: what else its tests read.
        ignored: tests that need more than this distribution.
        extras: optional parts its tests need.
    """

    name: str
    folder: Path
    tests: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


def read(pyproject: Path) -> Package:
    """The package of a plugin's or an example's `pyproject.toml`."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = tuple(sorted(set(project.get("optional-dependencies", {})) - {"test"}))
    return Package(
        project["name"], pyproject.parent, tuple(path.name for path in pyproject.parent.glob("test*")), extras=extras
    )


HOST = Package(
    "stacx-core",
    ROOT,
    tests=("tests",),
    needs=("benchmarks", "examples", "scripts"),
    ignored=(
        "tests/backends/megatron",
        "tests/cli/test_sample.py",
        "tests/docs",
        "tests/parity",
        "tests/rollout/sglang/test_command_faults.py",
        "tests/rollout/sglang/test_command_teacher.py",
        "tests/rollout/sglang/test_command_usage.py",
        "tests/rollout/sglang/test_router.py",
        "tests/scripts/test_swe_launchers.py",
        "tests/swe/agent/test_training.py",
        "tests/swe/gateway",
        "tests/swe/harness",
        "tests/train",
        "tests/trainer/ray",
        "tests/trainer/test_invariance.py",
        "tests/trainer/test_mixed_loss_dagger.py",
        "tests/trainer/test_offload.py",
        "tests/trainer/test_pools.py",
        "tests/trainer/test_resume.py",
    ),
    extras=("data", "plot", "reasoning-gym", "textarena", "wandb"),
)
OTHERS = [
    read(path) for pattern in ("plugins", "examples") for path in sorted(ROOT.glob(f"{pattern}/*/pyproject.toml"))
]
PACKAGES = {package.name: package for package in (HOST, *OTHERS)}


def python(session: nox.Session, *arguments: str) -> None:
    """Run a module in the environment nox was started from."""
    session.run(sys.executable, "-m", *arguments, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The whole test suite, with every plugin installed; arguments go to pytest."""
    python(session, "pytest", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Style, format, and who may import whom."""
    python(session, "ruff", "check", ".")
    python(session, "ruff", "format", "--check", ".")
    session.run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """The strict type checker on everything but tests."""
    python(session, "mypy")


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """The generated reference is up to date, and what the documentation shows is what the code is."""
    session.run(sys.executable, "docs/generate.py", "--check")
    python(session, "pytest", "tests/docs", "--quiet")


@nox.session(venv_backend="none")
def parallel(session: nox.Session) -> None:
    """Every installed recipe gives the same on one process and on several, in each layout."""
    python(session, "stacx_core", "check", "--all", "--parallel")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Compare with TRL, one CPU thread each; arguments go to the script."""
    session.install(TORCH)
    session.install("-e", ".", "-e", "plugins/stacx_plugin_grpo", "-r", "benchmarks/requirements.txt")
    session.run("python", "benchmarks/grpo_vs_trl.py", *session.posargs)


@nox.session
def trl(session: nox.Session) -> None:
    """Compare every loss that TRL has, too, with TRL's; arguments go to pytest."""
    session.install(TORCH)
    plugins = [argument for path in sorted(ROOT.glob("plugins/*")) for argument in ("-e", str(path))]
    session.install("-e", ".", *plugins, "-r", "benchmarks/requirements.txt", *TEST_TOOLS)
    # Without TRL the tests would be skipped.
    session.run("python", "-c", "import trl")
    session.run("python", "-m", "pytest", "tests/parity", *session.posargs)


@nox.session
def sglang(session: nox.Session) -> None:
    """Test against real SGLang servers on the CPU; arguments go to pytest.

    The servers run in the session's environment, whose pins are at odds with those of the project, and the tests in
    the one nox was started from.
    """
    session.install(TORCH)
    session.install("-r", "tests/sglang/requirements.txt")
    # It asks for GPU packages that a CPU server does without.
    session.install("--no-deps", SGLANG)
    interpreter = shutil.which("python", path=session.bin)
    assert interpreter is not None
    session.env["STACX_SGLANG_PYTHON"] = interpreter
    python(session, "pytest", *(session.posargs or ["tests/sglang"]))


@nox.session
def harness(session: nox.Session) -> None:
    """The tests with mini-swe-agent as it is published, in an environment of its own."""
    session.install(HARNESS)
    interpreter = shutil.which("python", path=session.bin)
    assert interpreter is not None
    session.env["MINI_SWE_PYTHON"] = interpreter
    tests = ["tests/swe/gateway/test_mini_swe_agent.py", "tests/swe/harness/test_mini_swe_agent.py"]
    python(session, "pytest", *(session.posargs or tests))


@nox.session
@nox.parametrize("package", list(PACKAGES))
def wheels(session: nox.Session, package: str) -> None:
    """Build a package, install the wheel alone, and test it outside the repository."""
    chosen = PACKAGES[package]
    session.env["PYTHONPATH"] = ""
    with tempfile.TemporaryDirectory(prefix="stacx-") as name, session.chdir(name):
        outside = Path(name)
        host = build(session, HOST, outside)
        wheel = host if chosen is HOST else build(session, chosen, outside)
        pins = outside / "constraints.txt"
        pins.write_text(f"{TORCH}\nstacx-core @ {host.as_uri()}\n", encoding="utf-8")
        session.install("--constraint", str(pins), str(wheel))
        session.run("python", "-m", "pip", "check")
        recipes = json.dumps(sorted({*RECIPES["stacx-core"], *RECIPES[package]}))
        session.run("python", "-c", LISTING, recipes)
        session.run("stacx", "list-recipes")
        with_extras = f"{wheel}[{','.join(chosen.extras)}]" if chosen.extras else str(wheel)
        session.install("--constraint", str(pins), with_extras, *TEST_TOOLS)
        for path in (*chosen.tests, *chosen.needs):
            copy(chosen.folder / path, outside / path)
        ignored = [f"--ignore={path}" for path in chosen.ignored]
        session.run("python", "-m", "pytest", "--import-mode=importlib", *chosen.tests, *ignored)


def build(session: nox.Session, package: Package, outside: Path) -> Path:
    """Build the wheel of a package and return its path."""
    source, target = package.folder, outside / "dist" / package.name
    if package is not HOST:
        # From a copy: setuptools leaves metadata beside its sources, which would count as an installed plugin.
        source = outside / "sources" / package.name
        copy(package.folder, source)
    python(session, "build", "--wheel", "--outdir", str(target), str(source))
    (wheel,) = target.glob("*.whl")
    return wheel


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without what tools left in it."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=LITTER)
    else:
        shutil.copy(source, target)
