"""`stacx train --max-staleness`, with an engine that holds its own copy of the weights, as servers do."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stacx_core.backends.model import stop_ids
from stacx_core.errors import EngineError
from stacx_core.rollout.evaluation import PromptEvaluation
from stacx_core.rollout.local import LocalEngine
from stacx_core.trainer.language import LanguageSetup

SECONDS = 60.0
ROLLOUTS = 5
SERVERS = ["--rollout-engine", "sglang", "--sglang-url", "http://127.0.0.1:9"]
STALE = [*SERVERS, "--n-samples-per-prompt", "4", "--num-rollout", str(ROLLOUTS), "--use-tis"]


class Snapshots:
    """Generates with the weights it was sent last.

    Args:
        ahead: So many further rollouts must have been generated before an update ends, if `waits`.
    """

    waits = True

    def __init__(self, model: Any, tokenizer: Any, ahead: int) -> None:
        self.ahead = ahead
        self.local = LocalEngine(copy.deepcopy(model), stop_ids(model, tokenizer), 64)
        self.first: int | None = None
        self.version, self.generated, self.closed, self.at_rest = 0, 0, False, False
        self.changed = threading.Condition()

    @contextmanager
    def weights_at_rest(self) -> Any:
        assert not self.at_rest
        self.at_rest = True
        try:
            yield
        finally:
            self.at_rest = False

    def update_weights(self, model: Any, version: int) -> None:
        assert not self.at_rest
        with self.changed:
            if self.first is None:
                self.first = version
            elif self.waits and self.ahead:
                wanted = min(version + self.ahead, ROLLOUTS) - self.first
                assert self.changed.wait_for(lambda: self.generated >= wanted, SECONDS)
            self.local.model.load_state_dict(model.state_dict())
            self.version = version

    def generate(self, requests: Any, params: Any) -> Any:
        with self.changed:
            if self.closed:
                raise EngineError("the generation was aborted")
            groups = self.local.generate(requests, params)
            self.generated += threading.current_thread() is not threading.main_thread()
            self.changed.notify_all()
            label = str(self.version)
        return [
            [dataclasses.replace(answer, weight_versions=[label] * len(answer.ids)) for answer in group]
            for group in groups
        ]

    def abort(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def close(self) -> None:
        self.abort()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Snapshots]:
    """Have runs with servers generate with snapshots; the engines of the runs so far."""
    made: list[Snapshots] = []
    local = LanguageSetup.engine

    def engine(setup: LanguageSetup, model: Any) -> Any:
        if setup.args.rollout_engine == "local":
            return local(setup, model)
        made.append(Snapshots(model, setup.tokenizer, setup.args.max_staleness))
        return made[-1]

    monkeypatch.setattr(LanguageSetup, "engine", engine)
    return made


@pytest.fixture
def run(train: Any, engines: list[Snapshots], rewards: Path) -> Any:
    def go(*flags: str, output: str = "run", **environment: str) -> Any:
        return train("grpo", "--rm-type", "fatal_rewards:digits", *STALE, *flags, output=output, **environment)

    return go


def alive() -> list[threading.Thread]:
    """Threads that make rollouts."""
    return [thread for thread in threading.enumerate() if thread.name == "stacx-rollouts"]


def of(name: str, lines: list[dict[str, float]]) -> list[float]:
    return [line[name] for line in lines if name in line]


@pytest.mark.parametrize("most", [1, 2])
def test_rollouts_are_made_while_the_trainer_trains(run: Any, metrics: Any, tmp_path: Path, most: int) -> None:
    """An update ends only when the next rollouts are there: this run would stand still if they came after it."""
    done = run("--max-staleness", str(most))
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert of("rollout/staleness", lines) == [0, 1, 1, 1, 1] if most == 1 else [0, 1, 2, 2, 2]
    assert lines[0]["train/tis_weight"] == pytest.approx(1, abs=1e-5)
    assert all(line["train/tis_weight"] != pytest.approx(1, abs=1e-5) for line in lines[1:])
    assert all(math.isfinite(value) for line in lines for value in line.values())


def test_without_staleness_a_run_is_as_with_the_local_engine(
    run: Any, train: Any, metrics: Any, tmp_path: Path
) -> None:
    assert run().code == 0
    local = [flag for flag in STALE if flag not in SERVERS]
    assert train("grpo", "--rm-type", "fatal_rewards:digits", *local, output="local").code == 0
    lines = metrics(tmp_path / "run")
    assert [line.pop("rollout/staleness") for line in lines] == [0] * ROLLOUTS
    assert lines == metrics(tmp_path / "local")


def test_the_ratio_to_the_old_weights_may_be_clipped_instead(run: Any, metrics: Any, tmp_path: Path) -> None:
    done = run("--max-staleness", "1", "--no-use-tis", "--use-rollout-logprobs")
    assert done.code == 0, done.err
    ratios = of("train/ratio_mean", metrics(tmp_path / "run"))
    assert ratios[0] == pytest.approx(1, abs=1e-5)
    assert all(ratio != pytest.approx(1, abs=1e-5) for ratio in ratios[1:])


def test_evaluations_see_the_weights_of_their_line(
    run: Any, metrics: Any, engines: list[Snapshots], sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(evaluation: Any, engine: Snapshots) -> dict[str, float]:
        assert engine.at_rest
        seen.append(engine.version)
        return evaluate(evaluation, engine)

    evaluate = PromptEvaluation.run
    monkeypatch.setattr(PromptEvaluation, "run", note)
    done = run("--max-staleness", "1", "--eval-prompt-data", str(sums), "--eval-interval", "2")
    assert done.code == 0, done.err
    lines = [line["rollout"] for line in metrics(tmp_path / "run") if "eval/reward_mean" in line]
    assert seen == lines == [0, 2, 4, 5]


def test_a_checkpoint_has_the_position_behind_the_last_trained_rollout(run: Any, tmp_path: Path) -> None:
    done = run("--max-staleness", "2", "--save-interval", "1", "--keep-checkpoints", "9")
    assert done.code == 0, done.err
    for number in range(1, ROLLOUTS + 1):
        state = json.loads((tmp_path / "run/checkpoints" / f"rollout_{number:06d}" / "trainer.json").read_text())
        taken = state["roll_in"]["epoch"] * state["roll_in"]["rows"] + state["roll_in"]["position"]
        assert (state["rollout"], taken) == (number, 4 * number)


def test_an_error_in_a_rollout_ends_the_run_with_its_code(
    run: Any, metrics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen rewards a rollout: the 35th is in the third."""
    monkeypatch.setattr(Snapshots, "waits", False)
    done = run("--max-staleness", "1", FATAL_CALL="35")
    assert done.code == 1
    assert "no such answer" in done.err
    assert of("rollout", metrics(tmp_path / "run")) == [1, 2]
    assert not alive()


def test_an_interrupt_saves_what_was_trained_and_the_run_goes_on(
    run: Any, metrics: Any, engines: list[Snapshots], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--max-staleness", "1"]
    monkeypatch.setattr(Snapshots, "waits", False)
    done = run(*flags, FATAL_CALL="55", FATAL_SIGNAL=str(int(signal.SIGINT)))
    assert done.code == 130, done.err
    assert not alive()
    assert engines[0].closed
    reached = len(metrics(tmp_path / "run"))
    assert f"interrupted; saved after rollout {reached}" in done.err
    monkeypatch.setattr(Snapshots, "waits", True)
    resumed = run(*flags, "--resume")
    assert resumed.code == 0, resumed.err
    lines = metrics(tmp_path / "run")
    assert of("rollout", lines) == [1, 2, 3, 4, 5]
    assert max(of("rollout/staleness", lines)) == 1
    assert lines[reached]["rollout/staleness"] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-staleness", "1"], "--max-staleness has no effect without --rollout-engine sglang; add it"),
        (["--max-staleness", "-1"], "--max-staleness"),
        ([*SERVERS, "--max-staleness", "1"], "add --use-tis"),
    ],
)
def test_what_cannot_be_is_refused(train: Any, flags: list[str], message: str) -> None:
    done = train("grpo", "--rm-type", "exact", "--num-rollout", "1", *flags)
    assert done.code == 2
    assert message in done.err
