"""``stacx eval`` on this project's own endpoint, behind which the expert acts."""

from __future__ import annotations

import json

from transformers import AutoTokenizer

from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.episodes import EpisodeTask
from stacx_core.rollout.teachers.loading import load_teacher
from stacx_core.swe.gateway.gateway import Gateway
from stacx_core.swe.gateway.settings import GatewaySettings

EXPERT = "stacx_core.swe.agent.expert:SolutionExpert"


def test_the_expert_behind_the_gateway_solves_tasks(stacx, provider, make_task, speaker, host_args, tmp_path):
    for name in ("a", "b"):
        make_task(f"tasks/{name}")
    args = host_args(environment=f"harbor:{tmp_path}/tasks", teacher=EXPERT, hf_checkpoint=str(speaker))
    tokenizer = AutoTokenizer.from_pretrained(speaker)
    expert = load_teacher(args, tokenizer, scores=False)
    settings = GatewaySettings("expert", SamplingParams(2048), 32768)
    with Gateway(settings, tokenizer, None, expert, lambda task, turn: "teacher") as gateway:
        session = gateway.open(EpisodeTask(0, 0, 0, "eval"))
        options = ("--endpoint", session.base_url, "--output-dir", tmp_path / "eval", "--json")
        done = stacx("eval", tmp_path / "tasks", *options, OPENAI_API_KEY=gateway.key)
        recorded = gateway.finish(session, 1.0)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["solved"], summary["pass@1"]["value"], summary["turns_mean"]) == (2, 1.0, 3.0)
    assert len(recorded.turns) == 6
    assert {turn.executor for turn in recorded.turns} == {"teacher"}
