"""Before a run: do the trainer, the engine and the teacher say the same of the same tokens?"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from stacx_core.data.sample import Sample
from stacx_core.errors import ParityError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from stacx_core.rollout.teachers.guarded import GuardedTeacher
from stacx_core.rollout.teachers.loading import MODEL, SGLANG
from stacx_core.seeds import sub_seed

TEXT = "The quick brown fox jumps over the lazy dog; 2 + 2 = 4."
PROMPT_TOKENS = 16
NEW_TOKENS = 8

logger = logging.getLogger(__name__)


def probe_parity(
    args: Args,
    tokenizer: PreTrainedTokenizerBase,
    engine: RolloutEngine,
    trainer: Callable[[Sample], list[float]],
    teacher: GuardedTeacher | None,
) -> dict[str, float]:
    """Let the engine go on with one fixed text, and compare what each part says of the tokens it wrote.

    A teacher is compared when it is a model. It is held to the limit when it is the checkpoint that the policy starts
    from, since only then both should agree.

    Args:
        args: The resolved knobs; ``parity_probe_limit`` is the largest mean absolute difference in nats.
        tokenizer: Of the policy.
        engine: Samples with the policy.
        trainer: Log-probs of a sample's response as training computes them.
        teacher: The roll-in's, if it has one.

    Returns:
        ``engine_gap`` and, with a model as teacher, ``teacher_gap``.

    Raises:
        ParityError: A gap is above the limit, or not finite, with the numbers.
    """
    sample = _continued(args, tokenizer, engine)
    trained = trainer(sample)
    engines = sample.rollout_log_probs or []
    gaps = {"engine_gap": _gap(trained, engines)}
    _check("engine", gaps["engine_gap"], args.parity_probe_limit, trained, engines)
    if teacher is not None and args.teacher in (MODEL, SGLANG):
        (score,) = teacher.score([sample], 0)
        gaps["teacher_gap"] = _gap(trained, score.log_probs)
        if args.teacher_load == args.hf_checkpoint:
            _check("teacher", gaps["teacher_gap"], args.parity_probe_limit, trained, score.log_probs)
    logger.info("parity probe over %d tokens: %s", sample.response_length, gaps)
    return gaps


def _continued(args: Args, tokenizer: PreTrainedTokenizerBase, engine: RolloutEngine) -> Sample:
    # A tokenizer may have no token for any of this; then one token, whichever it is, must do.
    prompt = list(tokenizer.encode(TEXT, add_special_tokens=False))[:PROMPT_TOKENS] or [0]
    request = GenerationRequest(prompt, [sub_seed(args.seed, "parity")])
    ((answer,),) = engine.generate([request], SamplingParams(NEW_TOKENS, args.rollout_temperature))
    sample = Sample(index=0, tokens=prompt, task_id="parity probe")
    sample.append_generated(answer.ids, answer.log_probs)
    return sample


def _gap(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def _check(who: str, gap: float, limit: float, trained: Sequence[float], theirs: Sequence[float]) -> None:
    if math.isfinite(gap) and gap <= limit:
        return
    pairs = ", ".join(f"{a:.4f}/{b:.4f}" for a, b in zip(trained, theirs, strict=True))
    raise ParityError(
        f"trainer and {who} differ by {gap:.4g} nats per token on the same text, above --parity-probe-limit {limit:g}",
        f"trainer/{who}, token by token: {pairs}",
        "their weights, precision or attention differ; --parity-probe-limit 0 trains all the same",
    )
