"""What the engine draws, and whether the trainer finds the same steps again."""

from __future__ import annotations

import pytest
import torch

from stacx_core import Args, BatchError
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_plugin_diffusion.advantages import check_ratios
from stacx_plugin_diffusion.engine import FlowEngine, Request
from stacx_plugin_diffusion.losses.policy_gradient import PolicyGradient
from stacx_plugin_diffusion.stepping import Stepping, sampling_settings
from stacx_plugin_diffusion.worker import FlowWorker

DYNAMICS = ("flow_sde", "dance_sde", "cps")
PROMPTS = ("zero", "one", "two", "three", "nine")


@pytest.fixture
def run_args(digits_checkpoint):
    """The arguments of a run of `flow_grpo`."""
    import stacx_plugin_diffusion.recipes  # noqa: F401

    knobs = TRAINING_CONFIGS["flow_grpo"].resolved_knobs
    small = {"height": 8, "width": 8, "sampling_steps": 5, "dtype": "fp32", "device": "cpu"}

    def build(**given):
        return Args({**{knob.name: knob.default for knob in knobs}, **small, **given})

    return build


@pytest.fixture
def engine_of(digits_checkpoint, load):
    return lambda args: FlowEngine(load(digits_checkpoint), args, torch.device("cpu"))


def requests_of(engine):
    return [Request(condition, 7 * number) for number, condition in enumerate(engine.encode(PROMPTS))]


@pytest.mark.parametrize("noisy", [(), (0, 1, 2, 3)])
@pytest.mark.parametrize("together", [1, 2, 64])
def test_a_sample_does_not_depend_on_what_is_drawn_beside_it(run_args, engine_of, noisy, together):
    whole, args = engine_of(run_args()), run_args(max_states_per_gpu=together)
    stepping = Stepping.of(args) if noisy else None
    expected = whole.draw(requests_of(whole), stepping, noisy, noisy)
    engine = engine_of(args)
    for number, request in reversed(list(enumerate(requests_of(engine)))):
        (alone,) = engine.draw([request], stepping, noisy, noisy)
        assert torch.allclose(alone.final, expected[number].final, atol=1e-6)
        if noisy:
            assert torch.equal(alone.states[0], expected[number].states[0])
            assert torch.allclose(alone.states, expected[number].states, atol=1e-6)
            assert torch.allclose(alone.log_probs, expected[number].log_probs, atol=1e-5)
    for one, other in zip(engine.draw(requests_of(engine), stepping, noisy, noisy), expected, strict=True):
        assert torch.allclose(one.final, other.final, atol=1e-6)


def test_samples_of_one_first_noise_part_at_the_first_noisy_step(run_args, engine_of):
    engine = engine_of(run_args())
    (condition,) = engine.encode(["two"])
    requests = [Request(condition, seed, first_seed=5) for seed in (1, 2)]
    one, other = engine.draw(requests, Stepping.of(run_args()), (1, 2), range(5))
    assert torch.equal(one.states[:2], other.states[:2])
    assert not torch.equal(one.states[2], other.states[2])
    alike = engine.draw(requests)
    assert torch.equal(alike[0].final, alike[1].final)


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_steps_outside_the_window_are_those_of_the_ode(run_args, engine_of, dynamics):
    args = run_args(dynamics=dynamics, guidance_scale=3.0)
    engine = engine_of(args)
    (drawn,) = engine.draw(requests_of(engine)[:1], Stepping.of(args), (1, 2), range(5))
    condition = {name: value[None] for name, value in engine.encode(["zero"])[0].items()}
    blank = {name: value[None] for name, value in engine.encode([""])[0].items()}
    for step in range(5):
        x, sigma = drawn.states[step : step + 1], engine.sigmas[step : step + 1]
        known, null = (engine.model.predict_velocity(x, sigma, cond) for cond in (condition, blank))
        ode = x + (null + 3 * (known - null)) * (engine.sigmas[step + 1] - sigma)
        assert torch.allclose(drawn.next_states[step], ode[0], atol=1e-5) == (step not in (1, 2))
        assert (drawn.log_probs[step] == 0) == (step not in (1, 2))
    assert torch.equal(drawn.next_states[:-1], drawn.states[1:])
    assert torch.equal(drawn.next_states[-1], drawn.final)


@pytest.fixture
def replay(digits_checkpoint, engine_of):
    """Draw samples with some arguments, then let a worker with perhaps others tell the log-probs of their steps."""

    def run(drawn_with, told_with=None, change=0.0, noted=False):
        engine, steps = engine_of(drawn_with), range(drawn_with.sampling_steps - 1)
        sigmas = engine.sigmas[list(steps)]
        drawn = engine.draw(requests_of(engine), Stepping.of(drawn_with), steps, steps)
        args = told_with or drawn_with
        role = TRAINING_CONFIGS["flow_grpo"].roles[0]
        worker = FlowWorker.load(role, PolicyGradient(args), str(digits_checkpoint), torch.float32, args)
        count = len(drawn)
        batch = {
            "conditions": engine.encode(PROMPTS),
            "states": [one.states + change * (number == 3) for number, one in enumerate(drawn)],
            "next_states": [one.next_states for one in drawn],
            "sigmas": [sigmas] * count,
            "next_sigmas": [engine.sigmas[1:-1]] * count,
            "second_sigmas": [engine.sigmas[1].expand(len(steps))] * count,
            "rollout_log_probs": [one.log_probs for one in drawn],
            "response_lengths": [len(steps)] * count,
            "loss_masks": [torch.ones(len(steps), dtype=torch.int32)] * count,
            "metadata": [{"sampling": sampling_settings(drawn_with)} if noted else {}] * count,
            "sample_indices": list(range(10, 10 + count)),
        }
        batch |= worker.tell(batch, ["log_probs"])
        return check_ratios(batch, args)

    return run


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_trainer_finds_the_steps_of_the_engine(run_args, replay, dynamics, guidance):
    args = run_args(dynamics=dynamics, guidance_scale=guidance)
    found = replay(args)
    assert 0 <= found["ratio_error"] <= 1e-6
    found = replay(args, run_args(dynamics=dynamics, guidance_scale=guidance, max_states_per_gpu=5))
    assert 0 <= found["ratio_error"] <= 1e-5


def test_changed_states_are_refused_with_the_name_of_their_sample(run_args, replay):
    with pytest.raises(BatchError, match=r"^sample 13: before any update a ratio is .* off 1, more than"):
        replay(run_args(), change=0.1)


@pytest.mark.parametrize("other", [{"eta": 0.6}, {"guidance_scale": 3.0}, {"dynamics": "cps"}])
def test_a_replay_with_other_settings_is_refused(run_args, replay, other):
    with pytest.raises(BatchError, match="sampling and training do not compute the same steps"):
        replay(run_args(), run_args(**other))


def test_other_settings_are_named_where_the_samples_say_theirs(run_args, replay):
    with pytest.raises(BatchError, match=r"^sample 10 was drawn with --eta 0.7 and cannot be replayed with 0.6"):
        replay(run_args(), run_args(eta=0.6, ratio_tolerance=0.0), noted=True)


def test_a_tolerance_of_0_does_not_look(run_args, replay):
    assert replay(run_args(), run_args(eta=0.6, ratio_tolerance=0.0)) == {}
