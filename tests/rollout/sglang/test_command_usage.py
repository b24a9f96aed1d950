"""`stacx train` with flags of servers that contradict each other, or only to look: nothing is loaded or started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

URL = "http://127.0.0.1:9"


@pytest.fixture
def grpo(train: Any, checkpoint: Path, tmp_path: Path) -> Callable[..., Any]:
    """`stacx train --algorithm grpo` of a model without weights: loading it would be another error."""
    folder = tmp_path / "weightless"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))

    def run(*flags: str | Path, **environment: str) -> Any:
        given = ["--hf-checkpoint", folder, "--rm-type", "exact", "--num-rollout", "1", "--n-samples-per-prompt", "2"]
        return train("grpo", *given, *flags, **environment)

    return run


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Flags of a module that leaves a file when it is started."""
    (tmp_path / "launcher.py").write_text(f"open({str(tmp_path / 'started')!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "--sglang-launch", "2", "--sglang-module", "launcher"


SGLANG = ("--rollout-engine", "sglang")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (SGLANG, "needs either --sglang-url, for servers that run already, or --sglang-launch"),
        ((*SGLANG, "--sglang-url", URL, "--sglang-launch", "1"), "both are set"),
        ((*SGLANG, "--sglang-url", URL, "--sglang-max-restarts", "1"), "--sglang-max-restarts is of servers that"),
        ((*SGLANG, "--sglang-url", URL, "--sglang-python", sys.executable), "--sglang-python is of servers that"),
        ((*SGLANG, "--sglang-url", "localhost:30000"), "is no URL of an SGLang server; write http://HOST:PORT"),
        ((*SGLANG, "--sglang-url", f"{URL},{URL}/"), f"--sglang-url names {URL} twice"),
        ((*SGLANG, "--sglang-launch", "1", "--sglang-router", URL), "--sglang-router needs servers that are named by"),
        ((*SGLANG, "--sglang-router", URL), "neither is set"),
        (
            (*SGLANG, "--sglang-url", URL, "--sglang-router", f"{URL}/"),
            f"--sglang-url and --sglang-router both name {URL}",
        ),
        ((*SGLANG, "--sglang-url", URL, "--sglang-router", "http://a:1,http://b:1"), "names several routers; name one"),
        ((*SGLANG, "--sglang-url", URL, "--sglang-router", "localhost:1"), "is no URL of an SGLang server"),
        (("--sglang-router", URL), "--sglang-router has no effect without --rollout-engine sglang"),
        (("--sglang-url", URL), "--sglang-url has no effect without --rollout-engine sglang"),
        (("--sglang-launch", "1"), "--sglang-launch has no effect without --rollout-engine sglang"),
        (("--sglang-health-timeout", "9"), "--sglang-health-timeout has no effect without --rollout-engine sglang"),
        (("--update-weight-mode", "tensor"), "--update-weight-mode has no effect without --rollout-engine sglang"),
        ((*SGLANG, "--sglang-launch", "1", "--sglang-python", "/no/python"), "'/no/python' is no program"),
        ((*SGLANG, "--sglang-launch", "1", "--sglang-module", "no_such.launcher"), "has no module 'no_such'"),
        ((*SGLANG, "--sglang-launch", "1", "--sglang-args", "--port 3"), "sets --port, which Stacx chooses"),
        ((*SGLANG, "--sglang-health-timeout", "1"), "--sglang-health-timeout"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("look", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_contradictions_are_refused_before_a_model_is_loaded(grpo: Any, flags: Any, said: str, look: Any) -> None:
    done = grpo(*flags, *look)
    assert done.code == 2
    assert said in done.err
    assert "weightless" not in done.err


def test_a_variable_that_has_no_effect_is_named(grpo: Any) -> None:
    done = grpo(STACX_SGLANG_PYTHON=sys.executable)
    assert done.code == 2
    assert "STACX_SGLANG_PYTHON has no effect without --rollout-engine sglang" in done.err


def test_a_dry_run_starts_no_server(grpo: Any, launcher: tuple[str, ...], tmp_path: Path) -> None:
    done = grpo(*SGLANG, *launcher, "--dry-run")
    assert done.code == 0, done.err
    assert "nothing was trained" in done.out
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "run").exists()


def test_a_dry_run_talks_to_no_server(grpo: Any, fake: Any, checkpoint: Path) -> None:
    server = fake(model=str(checkpoint))
    done = grpo(*SGLANG, "--sglang-url", server.url, "--dry-run")
    assert done.code == 0, done.err
    assert server.connections == []


def test_a_server_that_does_not_start_is_told_with_what_it_said(
    train: Any, launcher: tuple[str, ...], traces: Any, tmp_path: Path
) -> None:
    (tmp_path / "launcher.py").write_text("raise SystemExit('there is no kernel for this machine')")
    given = ["--rm-type", "exact", "--num-rollout", "1", "--n-samples-per-prompt", "2", *SGLANG]
    done = train("grpo", *given, *launcher)
    assert done.code == 1
    assert "exited with code 1 after" in done.err
    assert "there is no kernel for this machine" in done.err
    assert traces.all() == []
