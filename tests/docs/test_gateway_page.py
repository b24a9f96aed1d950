"""The function that the how-to page writes runs a harness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gateway_parts import Scripted, chat_tokenizer

HARNESS = """
import json, os, sys, urllib.request

body = {"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
"""


def test_the_harness_of_the_page_is_run(pages: Any, tmp_path: Path) -> None:
    (page,) = [page for page in pages if page.path.name == "train-an-agent-through-the-gateway.md"]
    namespace: dict[str, Any] = {}
    exec(page.blocks("python")[0].text, namespace)
    script = tmp_path / "harness.py"
    script.write_text(HARNESS, encoding="utf-8")
    tokenizer = chat_tokenizer()
    engine = Scripted(lambda prompt: "yes" if "two" in prompt else "no", tokenizer)
    command = [sys.executable, str(script)]
    samples = namespace["run_harness"](engine, tokenizer, command, ["one", "two"], len)
    assert [(sample.response, sample.reward, sample.task_id) for sample in samples] == [
        ("no", 3, "task 0"),
        ("yes", 3, "task 1"),
    ]
    assert [(sample.index, sample.rollout_id, sample.group_index) for sample in samples] == [(0, 0, 0), (1, 1, 1)]
