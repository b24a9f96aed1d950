"""An exchange between two processes: agreed first, so that a mismatch raises on both sides and neither waits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

END = """
import json, sys
import torch, torch.distributed as dist
from stacx_core import BatchError
from stacx_core.trainer.syncs import converse

rank, port, lengths, out = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
role, gives, takes = (("critic", ["values"], ["log_probs"]), ("policy", ["log_probs"], ["values"]))[rank]
batch = {"response_lengths": [2, 1]}
batch.update({key: [torch.full((n,), float(rank)) for n in sizes] for key, sizes in lengths.items()})
end = converse("ppo", role, batch, gives, takes)
try:
    said = next(end)
    while True:
        heard = [None, None]
        dist.all_gather_object(heard, said)
        said = end.send(heard[1 - rank])
except StopIteration:
    result = {key: [v.tolist() for v in batch[key]] for key in takes}
except BatchError as error:
    result = str(error)
open(out, "w").write(json.dumps(result))
dist.destroy_process_group()
"""


@pytest.fixture
def exchange(tmp_path: Path, start: Callable[..., Any]) -> Callable[..., list[Any]]:
    """What the critic (rank 0) and the policy (rank 1) end with, for the lengths of what each brings."""

    def run(critic: dict[str, list[int]], policy: dict[str, list[int]]) -> list[Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        script = tmp_path / "end.py"
        script.write_text(END)
        outs = [tmp_path / "critic.json", tmp_path / "policy.json"]
        ends = [
            start(script, str(rank), str(port), json.dumps(lengths), outs[rank])
            for rank, lengths in enumerate((critic, policy))
        ]
        assert [end.wait(timeout=60) for end in ends] == [0, 0]
        return [json.loads(out.read_text()) for out in outs]

    return run


def test_an_exchange_hands_over_in_both_directions(exchange: Any) -> None:
    critic, policy = exchange({"values": [2, 1]}, {"log_probs": [2, 1]})
    assert critic == {"log_probs": [[1.0, 1.0], [1.0]]}
    assert policy == {"values": [[0.0, 0.0], [0.0]]}


@pytest.mark.parametrize(
    ("critic", "policy", "message"),
    [
        ({"values": [2, 1]}, {}, "recipe 'ppo': role 'policy' did not produce 'log_probs' for its sync"),
        ({}, {"log_probs": [2, 1]}, "recipe 'ppo': role 'critic' did not produce 'values' for its sync"),
        (
            {"values": [2, 3]},
            {"log_probs": [2, 1]},
            "recipe 'ppo': role 'critic': 'values' of sample 1 has length 3, expected 1",
        ),
    ],
)
def test_both_ends_raise_the_same_error(exchange: Any, critic: Any, policy: Any, message: str) -> None:
    assert exchange(critic, policy) == [message, message]
