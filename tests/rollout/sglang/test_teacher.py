"""A teacher on servers: what it checks before it is used, and what becomes of samples it fails on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from stacx_core import Args, ConfigError, Sample, SamplingParams, TeacherError, TeacherTurn
from stacx_core.backends.model import load_tokenizer
from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.server import ServerRefused
from stacx_core.rollout.teachers.guarded import GuardedTeacher
from stacx_core.rollout.teachers.loading import load_teacher


def samples() -> list[Sample]:
    return [Sample(index=i, tokens=[3, 4, 5, 6 + i], response_length=2, group_index=0) for i in range(4)]


def only(index: int, fault: Any) -> Callable[[dict[str, Any]], Any]:
    """A fault of the sample with this index alone."""

    def change(answer: dict[str, Any]) -> Any:
        return fault(answer) if answer["meta_info"]["input_token_logprobs"][-1][1] == 6 + index else answer

    return change


def too_few(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["input_token_logprobs"].pop()
    return answer


def not_a_number(answer: dict[str, Any]) -> dict[str, Any]:
    answer["meta_info"]["input_token_logprobs"][-1][0] = math.nan
    return answer


@pytest.fixture
def load(checkpoint: Path, host_args: Callable[..., Args]) -> Callable[..., GuardedTeacher]:
    """The teacher of some servers of the tiny checkpoint."""

    def build(*servers: Any, **given: Any) -> GuardedTeacher:
        for server in servers:
            server.model = server.model or str(checkpoint)
        urls = ",".join(server.url for server in servers)
        own = {"hf_checkpoint": str(checkpoint), "teacher": "sglang", "teacher_url": urls, "teacher_retry_wait": 0.01}
        args = host_args(**{**own, "teacher_retries": 2, **given})
        return load_teacher(args, load_tokenizer(str(checkpoint)), scores=True)

    return build


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Callable[[Callable[[str], str | None]], str]:
    """The tiny checkpoint with other names of its weights; one that is named ``None`` is left out."""

    def make(name: Callable[[str], str | None]) -> str:
        folder = tmp_path / "changed"
        shutil.copytree(checkpoint, folder)
        weights = load_file(folder / "model.safetensors")
        renamed = {name(old): tensor for old, tensor in weights.items() if name(old)}
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    return make


def test_a_checkpoint_that_lacks_a_weight_is_refused(fake: Any, load: Any, changed: Any) -> None:
    lost = "model.layers.1.mlp.up_proj.weight"
    folder = changed(lambda name: None if name == lost else name)
    with pytest.raises(ConfigError, match=rf"{folder!r} lacks 1 weights, first {lost!r}"):
        load(fake(model=folder))


def test_a_checkpoint_with_names_of_its_own_is_let_pass(fake: Any, load: Any, changed: Any) -> None:
    load(fake(model=changed(lambda name: f"transformer.{name}")))


def test_it_scores_queries_and_acts(fake: Any, load: Any) -> None:
    teacher = load(fake(), fake())
    given = samples()
    metrics = teacher.label(given, 2, [[[5, 13]] * 2 for _ in given])
    assert metrics == {"teacher_failed": 0, "teacher_retries": 0}
    assert all(sample.teacher_topk_ids == [[0, 1, 5, 13]] * 2 for sample in given)
    assert all(len(sample.teacher_log_probs or []) == 2 for sample in given)
    (action,) = teacher.act([TeacherTurn([2, 3], "", 1)], SamplingParams(3, temperature=0))
    assert action is not None
    assert (action.ids, action.text) == ([5, 6, 7], "345")


def test_503_twice_is_asked_again_and_the_value_is_used(fake: Any, load: Any) -> None:
    server = fake()
    teacher = load(server)
    asked = len(server.bodies)
    server.faults.extend([503, 503])
    given = samples()[:1]
    assert teacher.label(given, 0) == {"teacher_failed": 0, "teacher_retries": 2}
    assert len(server.bodies) - asked == 3
    assert all(math.isfinite(value) for value in given[0].teacher_log_probs or [math.nan])


@pytest.mark.parametrize("fault", [too_few, not_a_number])
def test_only_the_samples_it_failed_on_are_dropped(fake: Any, load: Any, fault: Any) -> None:
    server = fake()
    teacher = load(server, teacher_failure="drop")
    server.always = only(2, fault)
    given = samples()
    assert teacher.label(given, 0) == {"teacher_failed": 1, "teacher_retries": 2}
    assert [sample.remove_sample for sample in given] == [False, False, True, False]
    assert given[2].teacher_log_probs is None


@pytest.mark.parametrize("fault", [503, "reset"])
def test_a_teacher_that_stays_away_ends_the_run_by_name(fake: Any, load: Any, fault: Any) -> None:
    server = fake()
    for policy in ("raise", "drop"):
        teacher = load(server, teacher_failure=policy)
        server.always = fault
        with pytest.raises(TeacherError, match=rf"failed on 4 of 4 samples, first sample 0: .*{server.url}"):
            teacher.label(samples(), 0)
        server.always = None


def test_a_late_teacher_is_given_up_in_time(fake: Any, load: Any) -> None:
    server = fake()
    teacher = load(server, teacher_timeout=0.1, teacher_retries=1)
    server.always = "hold"
    with pytest.raises(TeacherError, match=r"no answer within 0\.1 seconds; asked 2 time"):
        teacher.label(samples()[:1], 0)


def test_what_is_refused_is_not_asked_again(fake: Any, load: Any) -> None:
    server = fake()
    teacher = load(server, teacher_failure="drop")
    asked = len(server.bodies)
    server.always = 400
    with pytest.raises(ServerRefused, match=rf"{server.url}/generate answered 400"):
        teacher.label(samples()[:1], 0)
    assert len(server.bodies) == asked + 1


def test_servers_of_different_models_are_refused(fake: Any, load: Any) -> None:
    first, second = fake(), fake(model="/elsewhere")
    with pytest.raises(ConfigError, match=rf"hold different models: {first.url} .*, {second.url} '/elsewhere'"):
        load(first, second)


def test_another_tokenizer_is_refused(fake: Any, load: Any, checkpoint: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(checkpoint))
    AutoConfig.from_pretrained(checkpoint).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"4": 6', '"4": 7').replace('"5": 7', '"5": 6'))
    with pytest.raises(ConfigError, match=r"--teacher-url .* has another tokenizer than the policy: id 6 is '5' there"):
        load(fake(model=str(tmp_path)))


def test_a_model_that_is_not_on_this_machine_can_be_named(fake: Any, load: Any, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not to be found here: .*\n  name a copy of it, .* with --teacher-load"):
        load(fake(model="/nowhere/model"))
    teacher = load(fake(model="/nowhere/model"), teacher_load=str(checkpoint))
    assert teacher.label(samples(), 1)["teacher_failed"] == 0


def test_a_server_that_scores_at_temperature_1_only_is_refused_at_another(fake: Any, load: Any) -> None:
    with pytest.raises(ConfigError, match=r"score given tokens at temperature 1 only, and the run is at 0\.7"):
        load(fake(), rollout_temperature=0.7)


def test_a_server_that_scales_is_used_at_the_temperature(fake: Any, load: Any) -> None:
    server = fake(scales=True)
    teacher = load(server, rollout_temperature=0.5)
    given = samples()[:1]
    teacher.label(given, 2)
    assert server.bodies[-1]["sampling_params"]["temperature"] == 0.5
    first, second = (given[0].teacher_topk_log_probs or [[]])[0]
    assert first - second == pytest.approx(0.6)


def test_more_likeliest_ids_than_there_are_is_refused(fake: Any, load: Any) -> None:
    server = fake()
    teacher = load(server)
    asked = len(server.bodies)
    with pytest.raises(ConfigError, match="the 15 likeliest of 14 token ids were asked for; ask for at most 14"):
        teacher.label(samples(), 15)
    assert len(server.bodies) == asked


def test_a_server_that_is_not_there_is_said_at_the_start(fake: Any, load: Any) -> None:
    server = fake()
    server.kill()
    with pytest.raises(EngineError, match=rf"{server.url}/model_info: .*connection"):
        load(server)
    with pytest.raises(ConfigError, match="name the SGLang servers with --teacher-url"):
        load()
