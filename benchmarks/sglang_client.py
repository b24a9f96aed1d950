"""What the rollout engine adds to the time of SGLang servers: the same requests by it and by a bare asyncio loop.

    python benchmarks/sglang_client.py --url http://127.0.0.1:30000,http://127.0.0.1:30001

A server of ``FOLDER/long`` of ``python task.py FOLDER`` will do, with ``--new-tokens 90``.

Both sides take turns, each first in every other round, from an empty prefix cache each time. The figure is the ratio
of each side's fastest round, which other work on the machine disturbs least. Any model with at least 96 token ids will
do: a response has as many tokens as asked for unless the model ends it, which greedy decoding does alike for both.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import aiohttp

from stacx_core.rollout.engine import GenerationRequest, SamplingParams
from stacx_core.rollout.sglang.engine import SGLangEngine
from stacx_core.rollout.sglang.pool import Limits, ServerPool, servers_of

IDS = range(3, 96)
"""Token ids of the prompts; a server dies of one that its model lacks."""

LIMIT = 1.05
"""What the engine may take, as a multiple of the bare loop's time."""


def prompts(count: int, length: int) -> list[list[int]]:
    """Random ones."""
    source = random.Random(0)
    return [[source.choice(IDS) for _ in range(length)] for _ in range(count)]


async def bare(urls: Sequence[str], texts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
    """The least that a client can do: send everything, in turn to each server, and read the answers."""
    sampling = {"max_new_tokens": new_tokens, "temperature": 0}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def ask(url: str, text: list[int]) -> list[int]:
            body = {"input_ids": text, "sampling_params": sampling, "return_logprob": True}
            async with client.post(f"{url}/generate", json=body, raise_for_status=True) as answer:
                ids: list[int] = (await answer.json())["output_ids"]
            return ids

        return await asyncio.gather(*(ask(url, text) for url, text in zip(cycle(urls), texts, strict=False)))


@dataclass(frozen=True)
class Timed:
    """Seconds on the clock and of this process's CPU time, and the ids that were had in them."""

    seconds: float
    cpu: float
    ids: list[list[int]]


def timed(pool: ServerPool, call: Callable[[], list[list[int]]]) -> Timed:
    """Measure a call that begins with empty caches."""
    pool.run(pool.every(lambda server: server.post("/flush_cache", {}, 60.0)))
    begin, cpu = time.perf_counter(), time.process_time()
    ids = call()
    return Timed(time.perf_counter() - begin, time.process_time() - cpu, ids)


def main() -> int:
    """Print a line per round and the ratio; 1 when it is not below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="URL of each server, separated by commas")
    parser.add_argument("--requests", type=int, default=64, help="sent at a time")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    servers = servers_of("--url", options.url)
    urls = [server.url for server in servers]
    pool = ServerPool(servers, Limits(concurrency=options.requests))
    engine = SGLangEngine(pool, [], vocabulary=max(IDS) + 10**6)
    texts = prompts(options.requests, options.prompt_tokens)
    requests = [GenerationRequest(text, [0]) for text in texts]
    params = SamplingParams(options.new_tokens, temperature=0)
    sides: dict[str, Callable[[], list[list[int]]]] = {
        "bare": lambda: asyncio.run(bare(urls, texts, options.new_tokens)),
        "engine": lambda: [answer.ids for (answer,) in engine.generate(requests, params)],
    }
    rounds: list[dict[str, Timed]] = []
    for number in range(options.rounds + 1):
        order = list(sides) if number % 2 else list(reversed(sides))
        results = {name: timed(pool, sides[name]) for name in order}
        if results["bare"].ids != results["engine"].ids:
            raise SystemExit("the two sides got different token ids")
        if number:  # The first one warms up.
            rounds.append(results)
            print("  ".join(f"{name} {results[name].seconds:.3f} s" for name in sides), flush=True)
    best = {name: min(results[name].seconds for results in rounds) for name in sides}
    cpu = {name: statistics.median(results[name].cpu for results in rounds) for name in sides}
    ratio = best["engine"] / best["bare"]
    print(
        f"{options.requests} requests of {options.new_tokens} tokens to {len(urls)} server(s): bare loop "
        f"{best['bare']:.3f} s ({cpu['bare']:.3f} s of CPU), engine {best['engine']:.3f} s ({cpu['engine']:.3f} s of "
        f"CPU), ratio {ratio:.3f} (limit {LIMIT})"
    )
    return 0 if ratio < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
