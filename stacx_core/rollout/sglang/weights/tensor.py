"""Weights in the requests themselves: no shared disk and no connection back, but several times the time.

The bytes are a third more in base64, and SGLang's server reads them as JSON: SmolLM2-135M in fp32 took ten times as
long as through a disk or a process group.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Sequence

from torch import Tensor

from stacx_core.rollout.sglang.weights.everywhere import everywhere
from stacx_core.rollout.sglang.weights.plan import Plan
from stacx_core.rollout.sglang.weights.served import ServedModel
from stacx_core.rollout.sglang.weights.transport import BucketTransport, deliver, described, last


class TensorTransport(BucketTransport):
    """Posts pickled CPU tensors; works with servers on any machine and device."""

    async def send_bucket(self, plan: Plan, number: int, timeout: float) -> None:
        """Serialise a bucket once, and post it to all servers, one copy for each of their processes."""
        data = await asyncio.to_thread(lambda: serialised(plan.bucket(plan.buckets[number])))

        async def post(target: ServedModel) -> None:
            payload = {"serialized_named_tensors": [data] * target.tp_size, "flush_cache": last(plan, number)}
            await deliver(target, "/update_weights_from_tensor", payload, timeout, described(plan, number))

        await everywhere(plan.targets, post)


def serialised(named: Sequence[tuple[str, Tensor]]) -> str:
    """Named tensors as base64 of a pickle that SGLang's restricted unpickler reads.

    A plain pickle carries a tensor's bytes; the pickler of `torch.multiprocessing`, which SGLang uses on one machine,
    carries handles of shared memory that no other machine can open. A tensor's pickle holds all of its storage, so
    each gets a storage of its own.
    """
    return base64.b64encode(pickle.dumps([(name, _alone(tensor.detach().cpu())) for name, tensor in named])).decode()


def _alone(tensor: Tensor) -> Tensor:
    """The tensor, copied when its storage holds more than itself."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
