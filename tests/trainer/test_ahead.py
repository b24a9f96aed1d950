"""Rollouts made ahead: in order, never too far, stopped when they are no longer wanted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stacx_core import RewardError, Sample
from stacx_core.errors import EngineError
from stacx_core.rollout.protocol import RollIn, Rollout
from stacx_core.trainer import ahead
from stacx_core.trainer.ahead import RolloutsAhead, RolloutsInTurn, staleness

SECONDS = 20.0


class Engine:
    """Its generation ends when the test lets it, or is aborted."""

    def __init__(self):
        self.changed = threading.Condition()
        self.version = self.allowed = self.generated = self.aborts = 0
        self.events = []
        self.needs_rest = False
        self.at_rest = threading.Lock()
        self.at_rest.acquire()

    @contextmanager
    def weights_at_rest(self) -> Iterator[None]:
        self.at_rest.release()
        self.note("at rest")
        try:
            yield
        finally:
            self.at_rest.acquire()

    def generate(self):
        """The version at the beginning; under `needs_rest` only while the weights are at rest, as behind a restart."""
        with self.changed:
            began, aborts = self.version, self.aborts
            ok = self.changed.wait_for(lambda: self.generated < self.allowed or self.aborts > aborts, SECONDS)
            assert ok
            if self.aborts > aborts:
                raise EngineError("the generation was aborted")
            self.generated += 1
        if self.needs_rest:
            assert self.at_rest.acquire(timeout=SECONDS)
            self.at_rest.release()
        return began

    def allow(self, count):
        """Let so many generations in all end."""
        with self.changed:
            self.allowed = count
            self.changed.notify_all()

    def abort(self):
        with self.changed:
            self.aborts += 1
            self.changed.notify_all()

    def update_weights(self, model, version):
        self.version = version

    def close(self):
        pass

    def note(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait_for(self, event, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: self.events.count(event) >= count, SECONDS), self.events


class Counting(RollIn):
    """A sample a rollout, by the weights of the time; its state is the number of rollouts made."""

    def __init__(self, fails_at=-1, error=None):
        self.made, self.fails_at, self.error = 0, fails_at, error

    def roll(self, rollout, engine):
        engine.note(f"begun {rollout}")
        version = engine.generate()
        if rollout == self.fails_at:
            raise self.error
        self.made += 1
        engine.note(f"made {rollout}")
        return Rollout([Sample(index=rollout, weight_versions=[str(version)])], {})

    def state(self):
        return {"made": self.made}


class Tireless(Counting):
    """Goes on after an aborted generation, as a game whose players failed might."""

    def roll(self, rollout, engine):
        for _ in range(3):
            with pytest.raises(EngineError, match="aborted"):
                engine.generate()
            engine.note("aborted")
        return super().roll(rollout, engine)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def train(rollouts, engine, completed):
    """Take a rollout and finish its update."""
    rolled = rollouts.take(completed)
    engine.update_weights(None, completed + 1)
    rollouts.updated(completed + 1)
    return rolled


@pytest.mark.parametrize("most", [1, 2, 5])
def test_rollouts_come_in_order_and_none_is_too_old(engine, most):
    engine.allow(8)
    with RolloutsAhead(Counting(), engine, range(8), most) as rollouts:
        for completed in range(8):
            # Everything that may be made ahead is, and only that.
            engine.wait_for(f"made {min(completed + most, 7)}")
            assert f"begun {completed + most + 1}" not in engine.events
            rolled = train(rollouts, engine, completed)
            assert rolled.rollout.samples[0].index == completed
            assert rolled.position == {"made": completed + 1}
            lag = staleness(rolled.rollout.samples, completed)["staleness"]
            assert lag == min(completed, most)


def test_a_rollout_in_turn_is_made_when_it_is_asked_for(engine):
    engine.allow(1)
    with RolloutsInTurn(Counting(), engine) as rollouts:
        assert engine.events == []
        assert rollouts.take(0).position == {"made": 1}
        assert engine.events == ["at rest", "begun 0", "made 0"]
        with rollouts.idle():
            assert not engine.at_rest.locked()


def test_the_first_rollouts_of_a_resumed_run(engine):
    engine.version = 4
    engine.allow(3)
    with RolloutsAhead(Counting(), engine, range(4, 7), 1) as rollouts:
        taken = [train(rollouts, engine, completed).rollout.samples[0] for completed in range(4, 7)]
    assert [sample.index for sample in taken] == [4, 5, 6]


@pytest.mark.parametrize("error", [RewardError("no such answer"), SystemExit(3), ZeroDivisionError()])
def test_what_a_rollout_raises_is_raised_when_its_turn_comes(engine, error):
    engine.allow(8)
    with RolloutsAhead(Counting(2, error), engine, range(8), 3) as rollouts:
        engine.wait_for("begun 2")
        assert [train(rollouts, engine, completed).position["made"] for completed in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                rollouts.take(2)
            assert raised.value is error
    assert "begun 3" not in engine.events


@pytest.mark.parametrize("roll_in", [Counting, Tireless])
def test_what_is_under_way_is_aborted_at_the_end(engine, roll_in):
    def run():
        with RolloutsAhead(roll_in(), engine, range(8), 1) as rollouts:
            if roll_in is Counting:
                engine.wait_for("begun 0")
            threads.append(rollouts._thread)
            raise KeyboardInterrupt

    threads: list[threading.Thread] = []
    with pytest.raises(KeyboardInterrupt):
        run()
    assert not threads[0].is_alive()
    assert engine.aborts >= 1


def test_one_that_waits_for_its_turn_ends_too(engine):
    engine.allow(2)
    with RolloutsAhead(Counting(), engine, range(8), 1) as rollouts:
        engine.wait_for("made 1")
    assert not rollouts._thread.is_alive()
    assert "begun 2" not in engine.events


def test_one_that_does_not_end_is_left_alone(engine, monkeypatch, caplog):
    monkeypatch.setattr(ahead, "STOP_SECONDS", 0.1)
    release = threading.Event()

    class Deaf(Counting):
        def roll(self, rollout, engine):
            engine.note("begun")
            release.wait(SECONDS)
            return super().roll(rollout, engine)

    with RolloutsAhead(Deaf(), engine, range(8), 1) as rollouts:
        engine.wait_for("begun")
    assert rollouts._thread.is_alive()
    assert [record.message[:27] for record in caplog.records] == ["a rollout does not end with"]
    release.set()
    engine.abort()
    engine.allow(1)
    rollouts._thread.join(SECONDS)


def test_idle_waits_for_the_rollout_under_way_and_lets_no_other_begin(engine):
    engine.allow(1)
    leave = threading.Event()
    with RolloutsAhead(Counting(), engine, range(3), 2) as rollouts:
        engine.wait_for("begun 1")

        def idle():
            with rollouts.idle():
                engine.note("idle")
                leave.wait(SECONDS)
                engine.note("over")

        evaluation = threading.Thread(target=idle)
        evaluation.start()
        engine.wait_for("at rest")
        with rollouts._changed:
            assert rollouts._changed.wait_for(lambda: rollouts._paused, SECONDS)
        engine.allow(3)
        engine.wait_for("idle")
        rollouts.updated(1)
        leave.set()
        evaluation.join(SECONDS)
        engine.wait_for("made 2")
    order = [event for event in engine.events if event != "at rest"]
    assert order == ["begun 0", "made 0", "begun 1", "made 1", "idle", "over", "begun 2", "made 2"]


def test_a_rollout_that_needs_the_weights_at_rest_gets_them_while_the_trainer_waits(engine):
    """As when every server was restarted and must be given the weights first."""
    engine.needs_rest = True
    engine.allow(8)
    with RolloutsAhead(Counting(), engine, range(8), 1) as rollouts:
        for completed in range(2):
            train(rollouts, engine, completed)
        engine.wait_for("begun 2")
        with rollouts.idle():
            assert "made 2" in engine.events
        assert engine.at_rest.locked()
        train(rollouts, engine, 2)
        engine.wait_for("begun 3")
    assert not rollouts._thread.is_alive()


def versions(*given: str) -> list[Any]:
    return [Sample(index=0, weight_versions=list(given)), Sample(index=1)]


def test_the_oldest_weights_count():
    assert staleness(versions("3", "4"), 4) == {"staleness": 1}
    assert staleness(versions("0", "3"), 4) == {"staleness": 4}
    assert staleness([Sample(index=0)], 4) == {}
