"""Start a SGLang server on a CPU: `python -m launch_cpu_server ARGUMENTS`, with this folder on PYTHONPATH.

It takes the arguments of `sglang.launch_server`, and stands in for it where no GPU build of torchvision is. The
processes that SGLang spawns import this module again, so that the operators are there in each. For tests only.
"""

from __future__ import annotations

import os
import sys

import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
