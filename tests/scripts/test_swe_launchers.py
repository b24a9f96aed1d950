"""The launchers for coding agents: what they run, what they refuse, and their smoke mode."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SWE = ROOT / "scripts" / "train" / "swe"
EXAMPLES = ROOT / "examples" / "swe_tasks"
LAUNCHERS = {path.stem: path for path in sorted(SWE.glob("*/*.sh"))}
METHODS = ("grpo", "sft", "opd", "dagger", "aggrevate")
EXPERT = "stacx_core.swe.agent.expert:SolutionExpert"
BASH = shutil.which("bash") or "bash"
EVALUATION = {"HELD_OUT": str(SWE / "smoke_held_out.txt"), "EVAL_TASKS": "2"}
GPUS = {"TASKS": str(EXAMPLES), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **EVALUATION}
LIMIT = 540
"""Seconds that a launcher may take before its processes are killed."""

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="needs bubblewrap: apt-get install bubblewrap"
)
Launch = Callable[..., subprocess.CompletedProcess[str]]


def module_from(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def programs(folder: Path) -> Path:
    """The programs that launchers call, run by this interpreter."""
    python = shlex.quote(sys.executable)
    for name, command in {"python3": python, "stacx": f"{python} -m stacx_core"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a launcher, with none of its variables."""
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")}
    path = os.pathsep.join([str(programs(tmp_path_factory.mktemp("bin"))), os.environ["PATH"]])
    modules = os.pathsep.join([str(ROOT), *map(str, ROOT.glob("plugins/*")), *filter(None, sys.path)])
    return {**kept, "PATH": path, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def launch_in(surroundings: dict[str, str]) -> Launch:
    """Run a launcher with a folder as its CACHE_ROOT."""

    def run(folder: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**surroundings, "CACHE_ROOT": str(folder / "cache"), **variables}
        command = [BASH, str(LAUNCHERS[name]), *arguments]
        return subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    return run


@pytest.fixture
def launch(launch_in: Launch, tmp_path: Path) -> Launch:
    """Run a launcher with a CACHE_ROOT of this test."""
    return partial(launch_in, tmp_path)


@pytest.fixture(scope="session")
def replay(launch_in: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CACHE_ROOT of a smoke run of sft."""
    folder = tmp_path_factory.mktemp("replay")
    done = launch_in(folder, "sft_4b", SMOKE="1")
    assert done.returncode == 0, done.stderr
    return folder / "cache"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    module_from(SWE / "smoke_models.py").main(folder)
    return folder


def printed(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The commands that a launcher printed."""
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


def value(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1
    return command[command.index(flag) + 1]


def records_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def lines_of(run: Path) -> list[dict[str, Any]]:
    return records_of(run / "metrics.jsonl")


def test_there_is_one_for_each_method_and_size() -> None:
    assert sorted(LAUNCHERS) == sorted(f"{method}_{size}" for method in METHODS for size in ("4b", "8b"))


@pytest.mark.parametrize("path", [*sorted(SWE.glob("*.sh")), *LAUNCHERS.values()], ids=lambda path: path.name)
def test_bash_accepts_the_script(path: Path) -> None:
    subprocess.run([BASH, "-n", str(path)], check=True, timeout=60)


def test_the_page_of_the_variables_is_up_to_date() -> None:
    generate = module_from(ROOT / "docs" / "generate.py")
    page = (SWE / "ENV_REFERENCE.md").read_text(encoding="utf-8")
    assert page == generate.variables_page(generate.recipes()), "run python docs/generate.py"


def test_every_variable_that_is_used_is_in_the_table() -> None:
    table = re.findall(r"^(\w+) +\|", (SWE / "variables.txt").read_text(encoding="utf-8"), re.M)
    used = re.findall(r"\$\{?([A-Z][A-Z_]+)", (SWE / "common.sh").read_text(encoding="utf-8"))
    own = {"HERE", "EXAMPLES", "LAUNCHER", "RUN", "DRY_RUN", "BASH_SOURCE", "PYTHONPATH", "WANDB_API_KEY", "IFS"}
    own |= {"TEACHER_DEVICES", "ROLLOUT_DEVICES", "CUDA_VISIBLE_DEVICES"}
    assert set(used) <= {*table, *own}


@needs_bubblewrap
@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_real_command_accepts_what_a_launcher_asks_for(launch: Launch, replay: Path, name: str) -> None:
    teachers = {"sft": EXPERT, "dagger": EXPERT, "opd": "model", "aggrevate": "model", "grpo": ""}
    done = launch(
        name,
        "--dry-run",
        TASKS=str(EXAMPLES),
        **EVALUATION,
        TEACHER=teachers[name.partition("_")[0]],
        TEACHER_HF=str(replay / "smoke" / "teacher"),
        BASE_HF=str(replay / "smoke" / "student"),
        CORPUS_DIR=str(replay / "corpora" / "sft_4b-smoke"),
        MAX_RESPONSE_LEN="64",
        SGLANG_URL="http://127.0.0.1:9",
    )
    assert done.returncode == 0, done.stderr
    assert "5 rollouts of" in done.stdout
    assert "2 held out; nothing was trained" in done.stdout


def test_a_node_is_shared_between_teacher_servers_and_student(launch: Launch) -> None:
    node = {"TASKS": str(EXAMPLES), "CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
    plan, teacher, train = printed(launch("opd_8b", PRINT="1", **node))
    assert plan[:4] == ["stacx", "plan", "--model", "qwen3-8b"]
    assert teacher[:4] == ["env", "CUDA_VISIBLE_DEVICES=7,6", "python3", "-m"]
    assert value(teacher, "--model-path") == "Qwen/Qwen3-Coder-30B-A3B-Instruct"
    assert value(train, "--teacher-url") == "http://127.0.0.1:31000"
    assert value(train, "--sglang-launch") == "2"
    assert value(train, "--tensor-model-parallel-size") == value(train, "--num-gpus-per-node") == "4"


def test_the_default_share_of_the_teacher_falls_over_the_five_rollouts(launch: Launch) -> None:
    *_, train = printed(launch("dagger_4b", PRINT="1", TASKS=str(EXAMPLES)))
    assert [value(train, f"--dagger-beta-{name}") for name in ("start", "end", "decay")] == ["1.0", "0.0", "5"]
    assert "--dagger-beta-floor" not in train
    assert [value(train, flag) for flag in ("--num-rollout", "--rollout-batch-size", "--lr")] == ["5", "512", "3e-6"]
    *_, floored = printed(launch("dagger_4b", PRINT="1", TASKS=str(EXAMPLES), BETA_FLOOR="0.6", NUM_ROLLOUT="10"))
    assert value(floored, "--dagger-beta-floor") == "0.6"
    assert value(floored, "--num-rollout") == "10"


def test_another_recipe_has_its_own_defaults(launch: Launch) -> None:
    *_, labels = printed(launch("dagger_4b", PRINT="1", TASKS=str(EXAMPLES)))
    *_, mixture = printed(launch("dagger_4b", PRINT="1", TASKS=str(EXAMPLES), RECIPE="mixture_dagger_opd"))
    assert value(labels, "--rollout-temperature") == "0.7"
    assert value(mixture, "--rollout-temperature") == "1"
    assert value(mixture, "--algorithm") == "mixture_dagger_opd"


def test_without_an_evaluation_a_replay_plays_nothing(launch: Launch) -> None:
    *_, train = printed(launch("sft_4b", PRINT="1", TASKS=str(EXAMPLES), EVAL_TASKS="0"))
    assert not {"--environment", "--max-turns", "--eval-tasks", "--eval-interval"} & set(train)


def test_a_replay_without_an_evaluation_needs_the_students_gpus_alone(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    variables = {
        "CORPUS_DIR": str(tmp_path),
        "EVAL_TASKS": "0",
        "TASKS": str(EXAMPLES),
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    plan, train = printed(launch("sft_8b", PRINT="1", **variables))
    assert plan[1] == "plan"
    assert not any(word.startswith(("--sglang", "--teacher")) for word in train)


def test_a_launcher_runs_through_a_link(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.sh").symlink_to(LAUNCHERS["grpo_4b"])
    monkeypatch.setitem(LAUNCHERS, "mine", tmp_path / "mine.sh")
    linked, direct = (printed(launch(name, PRINT="1", TASKS=str(EXAMPLES))) for name in ("mine", "grpo_4b"))
    assert linked == direct


def test_variables_of_other_launchers_have_no_effect(launch: Launch) -> None:
    usual = printed(launch("grpo_4b", PRINT="1", TASKS=str(EXAMPLES)))
    assert printed(launch("grpo_4b", PRINT="1", TASKS=str(EXAMPLES), TEACHER_GPUS="8", BETA_FLOOR="x")) == usual


def test_the_key_of_a_tracker_is_in_no_command(launch: Launch) -> None:
    done = launch("grpo_4b", PRINT="1", TASKS=str(EXAMPLES), USE_WANDB="1", WANDB_KEY="secret")
    *_, train = printed(done)
    assert value(train, "--wandb-mode") == "online"
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "variables", "message"),
    [
        ("grpo_4b", {"STUDENT_GPUS": "8"}, "STUDENT_GPUS is 8 and TENSOR_PARALLEL is 4: the student is one model"),
        ("opd_8b", {"TENSOR_PARALLEL": "2"}, "STUDENT_GPUS is 4 and TENSOR_PARALLEL is 2"),
        ("sft_4b", {"STUDENT_GPUS": "4,5"}, "STUDENT_GPUS must be a whole number, not '4,5'"),
        ("grpo_4b", {"GLOBAL_BATCH_SIZE": "600"}, "GLOBAL_BATCH_SIZE is 600, but a rollout has 512 episodes"),
        ("grpo_4b", {"TASKS": ""}, "TASKS is not set: name a folder of tasks, or try the launcher with SMOKE=1"),
        ("grpo_4b", {"TASKS": "nowhere"}, "TASKS is 'nowhere', which is no folder"),
        ("grpo_4b", {"EVAL_TASKS": "0", "EVAL_INTERVAL": "2"}, "EVAL_INTERVAL has no effect with EVAL_TASKS=0"),
        ("grpo_4b", {"USE_WANDB": "1"}, "USE_WANDB=1 needs a key: set WANDB_KEY"),
        ("grpo_4b", {"USE_WANDB": "yes"}, "USE_WANDB must be 0 or 1, not 'yes'"),
        ("grpo_4b", {"RUN_TAG": "a/b"}, "RUN_TAG names a folder"),
        ("grpo_4b", {"RUN_TAG": ".."}, "RUN_TAG names a folder"),
        ("grpo_4b", {"CACHE_ROOT": ""}, "CACHE_ROOT is empty"),
        ("grpo_4b", {"CACHE_ROOT": "/proc/nowhere"}, "CACHE_ROOT is '/proc/nowhere', where nothing can be written"),
        ("grpo_4b", {"HELD_OUT": "nowhere"}, "HELD_OUT is 'nowhere', which is no file"),
        ("grpo_4b", {"ROLLOUT_BATCH_SIZE": "08"}, "ROLLOUT_BATCH_SIZE must be a whole number, not '08'"),
        ("grpo_4b", {"N_SAMPLES_PER_PROMPT": "a[$(id)]"}, "N_SAMPLES_PER_PROMPT must be a whole number"),
        ("opd_4b", {"MAX_SEQUENCE_LEN": "64k"}, "MAX_SEQUENCE_LEN must be a whole number, not '64k'"),
        ("opd_4b", {"TEACHER_PORT": "http"}, "TEACHER_PORT must be a whole number, not 'http'"),
        ("dagger_4b", {"TEACHER": EXPERT, "TEACHER_GPUS": "x"}, "TEACHER_GPUS must be a whole number, not 'x'"),
        ("grpo_4b", {"CUDA_VISIBLE_DEVICES": "0,1"}, "are 8 GPUs, but there are 2"),
        ("grpo_4b", {"ROLLOUT_GPUS": "0"}, "no server can generate; name running ones with SGLANG_URL"),
        ("grpo_4b", {"ROLLOUT_GPUS": "4", "SGLANG_URL": "http://x:1"}, "unset one of them"),
        ("dagger_4b", {"RECIPE": "dagger"}, "RECIPE is 'dagger'; there are online_dagger and mixture_dagger_opd"),
        ("opd_4b", {"TEACHER_GPUS": "0"}, "no server can be started; name a running one with TEACHER_URL"),
        ("opd_4b", {"TEACHER": "model", "TEACHER_URL": "http://x:1"}, "but TEACHER is 'model'; unset one of them"),
        ("opd_4b", {"TEACHER_GPUS": "2", "TEACHER_URL": "http://x:1"}, "unset one of them"),
        ("grpo_8b", {"GPU_MEMORY_GB": "40"}, "of the 40 GB of a GPU"),
    ],
)
def test_what_contradicts_is_refused(launch: Launch, name: str, variables: dict[str, str], message: str) -> None:
    done = launch(name, **{**GPUS, **variables})
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_without_bubblewrap_nothing_begins(launch: Launch, tmp_path: Path, name: str) -> None:
    for program in ("bash", "dirname", "readlink", "cat", "mkdir"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    done = launch(name, SMOKE="1", PATH=str(programs(tmp_path)))
    assert done.returncode == 2
    assert "needs bubblewrap, which is not installed: install it (apt install bubblewrap" in done.stderr
    assert not (tmp_path / "cache").exists()


@needs_bubblewrap
def test_any_path_can_name_the_tasks_and_those_held_out(launch: Launch, tmp_path: Path) -> None:
    tasks, names = tmp_path / "a & b+c %41", tmp_path / "held & out+%41.txt"
    for name in ("binary-search", "invoice-total"):
        shutil.copytree(EXAMPLES / name, tasks / name)
    names.write_text("binary-search\n")
    given = {"TASKS": str(tasks), "HELD_OUT": str(names), "CACHE_ROOT": str(tmp_path / "my cache")}
    given |= {"NUM_TASKS": "1", "EVAL_TASKS": "1"}
    done = launch("grpo_4b", "--dry-run", SMOKE="1", **given)
    assert done.returncode == 0, done.stderr
    assert "1 held out; nothing was trained" in done.stdout


def test_a_question_mark_in_a_path_is_refused(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "a?b").mkdir()
    done = launch("grpo_4b", SMOKE="1", TASKS=str(tmp_path / "a?b"))
    assert (done.returncode, "options begin behind a question mark" in done.stderr) == (2, True)


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield str(server.getsockname()[1])


@needs_bubblewrap
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (None, "EVAL_TASKS is 100, but {tasks}/held_out.txt holds out 0 tasks; lower EVAL_TASKS, or set it to 0"),
        ("# hard\n\n a\r\nb", "EVAL_TASKS is 100, but {tasks}/held_out.txt holds out 2 tasks"),
    ],
)
def test_more_tasks_than_are_held_out_are_refused_before_anything_begins(
    launch: Launch, tmp_path: Path, names: str | None, message: str
) -> None:
    if names is not None:
        (tmp_path / "held_out.txt").write_text(names)
    done = launch("sft_4b", TASKS=str(tmp_path))
    assert (done.returncode, message.format(tasks=tmp_path) in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_port_of_another_run_is_refused(launch: Launch, taken_port: str) -> None:
    done = launch("opd_4b", TEACHER_PORT=taken_port, **GPUS)
    assert done.returncode == 2
    assert f"something listens on port {taken_port} already" in done.stderr


def test_a_teacher_that_does_not_start_is_told(launch: Launch, tmp_path: Path) -> None:
    done = launch("opd_4b", SGLANG_PYTHON="false", TEACHER_PORT=free_port(), **GPUS)
    assert done.returncode == 1
    assert "the teacher's server ended: see" in done.stderr
    assert (tmp_path / "cache" / "runs" / "opd_4b" / "teacher.log").is_file()


def test_the_teachers_server_ends_with_the_run(launch: Launch, tmp_path: Path, models: Path, eventually: Any) -> None:
    """What stands in for it answers, but is no SGLang server, so that the command ends by itself."""
    (tmp_path / "health").touch()
    port, server = free_port(), tmp_path / "server"
    serve = f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1 {port}"
    server.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec python3 "$@"\nexec {serve}\n')
    server.chmod(0o755)
    variables = {
        "BASE_HF": str(models / "student"),
        "MAX_RESPONSE_LEN": "64",
        "SGLANG_URL": "http://127.0.0.1:9",
        "SGLANG_PYTHON": str(server),
        "TEACHER_PORT": port,
    }
    done = launch("dagger_4b", **GPUS, **variables)
    assert done.returncode not in (0, 2), done.stderr
    assert "GET /health" in (tmp_path / "cache" / "runs" / "dagger_4b" / "teacher.log").read_text(encoding="utf-8")
    eventually(lambda: not listens(int(port)))


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@needs_bubblewrap
def test_the_smoke_mode_of_sft_learns_what_the_expert_did(replay: Path) -> None:
    manifest = json.loads((replay / "corpora" / "sft_4b-smoke" / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["episodes"], manifest["reward_mean"]) == (4, 1)
    first, last = lines_of(replay / "runs" / "sft_4b-smoke")
    assert first["rollout/loss_tokens"] > 100
    assert last["eval/episodes"] == 2


@needs_bubblewrap
@pytest.mark.parametrize("method", ["grpo", "opd", "aggrevate"])
def test_the_smoke_mode_goes_the_whole_way(launch: Launch, tmp_path: Path, method: str) -> None:
    done = launch(f"{method}_4b", SMOKE="1")
    assert done.returncode == 0, done.stderr
    lines = lines_of(tmp_path / "cache" / "runs" / f"{method}_4b-smoke")
    for line in lines:
        assert line["rollout/outcome_done"] + line["rollout/outcome_turn_limit"] == (4 if method == "grpo" else 2)
    assert lines[-1]["eval/episodes"] == 2
    if method == "aggrevate":
        assert 0 < sum(line["rollout/teacher_turn_frac"] for line in lines) < 2


@pytest.fixture
def killed(surroundings: dict[str, str], tmp_path: Path, eventually: Any) -> Callable[..., None]:
    """Start a launcher with this test's CACHE_ROOT, and kill all its processes as soon as something is there."""

    def run(name: str, appeared: Callable[[], bool], **variables: str) -> None:
        process = subprocess.Popen(
            [BASH, str(LAUNCHERS[name])],
            env={**surroundings, "CACHE_ROOT": str(tmp_path / "cache"), **variables},
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually(lambda: appeared() or process.poll() is not None, seconds=LIMIT)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)

    return run


@needs_bubblewrap
def test_a_killed_launcher_goes_on_where_it_stopped(
    launch: Launch, killed: Callable[..., None], tmp_path: Path
) -> None:
    run = tmp_path / "cache" / "runs" / "dagger_4b-smoke"
    variables = {"SMOKE": "1", "NUM_ROLLOUT": "4", "BETA_DECAY": "4"}
    killed("dagger_4b", (run / "checkpoints" / "rollout_000001").is_dir, **variables)
    kept = lines_of(run)[0]
    done = launch("dagger_4b", **variables)
    assert done.returncode == 0, done.stderr
    lines = lines_of(run)
    assert [line["rollout"] for line in lines] == [1, 2, 3, 4]
    assert lines[0] == kept
    assert [line["rollout/beta"] for line in lines] == [1, 0.75, 0.5, 0.25]
    assert lines[0]["rollout/teacher_turn_frac"] == lines[0]["rollout/success_rate"] == 1
    assert 0 < lines[3]["rollout/teacher_turn_frac"] < 1
    assert lines[0]["rollout/outcome_full_teacher"] == 2
    assert lines[3]["eval/episodes"] == 2


@needs_bubblewrap
def test_a_collection_that_was_killed_goes_on_and_no_episode_is_lost_or_doubled(
    launch: Launch, killed: Callable[..., None], replay: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "cache" / "corpora" / "sft_4b-smoke"
    variables = {"SMOKE": "1", "NUM_EPISODES": "7"}
    killed("sft_4b", (corpus / "episodes_000002-000003.jsonl").is_file, **variables)
    assert not (corpus / "manifest.json").exists()
    kept = {path.name: path.read_bytes() for path in corpus.glob("episodes_*.jsonl")}
    done = launch("sft_4b", **variables)
    assert done.returncode == 0, done.stderr
    names = [f"episodes_00000{first}-00000{min(first + 1, 6)}.jsonl" for first in (0, 2, 4, 6)]
    assert sorted(path.name for path in corpus.glob("episodes_*.jsonl")) == names
    assert {name: (corpus / name).read_bytes() for name in kept} == kept
    records = [record for name in names for record in records_of(corpus / name)]
    assert [record["episode"] for record in records] == list(range(7))
    never_killed = replay / "corpora" / "sft_4b-smoke"
    assert records[:4] == [record for name in names[:2] for record in records_of(never_killed / name)]
    manifest = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["episodes"], manifest["failed"], manifest["reward_mean"]) == (7, 0, 1)
    assert lines_of(tmp_path / "cache" / "runs" / "sft_4b-smoke")[-1]["eval/episodes"] == 2


@needs_bubblewrap
def test_the_smoke_mode_takes_another_model(launch: Launch, replay: Path) -> None:
    done = launch("opd_4b", "--dry-run", SMOKE="1", SMOLLM2=str(replay / "smoke" / "student"))
    assert done.returncode == 0, done.stderr
    assert "opd: 2 rollouts of 2 x 1" in done.stdout


@needs_bubblewrap
def test_the_exit_code_is_that_of_the_command(launch: Launch) -> None:
    done = launch("grpo_4b", "--rollout-max-response-len", "8000", SMOKE="1")
    assert done.returncode == 2
    assert "leaves no room for --rollout-max-response-len 8000" in done.stderr
