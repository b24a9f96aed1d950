"""Knobs of role workers that are processes of Ray."""

from __future__ import annotations

from stacx_core.knobs import Knob

RAY_KNOBS: tuple[Knob, ...] = (
    Knob("role_workers", str, None, "Where roles are trained: local is this process, ray several processes, which Ray "
         "places on one node or many; unset takes ray with --backend megatron, else local.", "ray",
         choices=("local", "ray")),
    Knob("ray_address", str, None, "Address of a running Ray cluster, or auto to look for one; unset starts a Ray on "
         "this machine that ends with the run.", "ray"),
    Knob("num_nodes", int, 1, "Nodes to train on.", "ray", minimum=1),
    Knob("num_gpus_per_node", int, None, "Processes per node, with a GPU each where there are GPUs; unset takes as "
         "many as the recipe's pools need.", "ray", minimum=1),
    Knob("worker_timeout", float, 30.0, "Seconds without an answer after which a process is taken to have stopped.",
         "ray", minimum=5),
    Knob("max_restarts", int, 0, "How often the run goes on from its last checkpoint after a process was lost.", "ray",
         minimum=0),
)  # fmt: skip
