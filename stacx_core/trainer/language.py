"""What a run of language models has beside its roles: tokenizer, prompts, reward and engine."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from stacx_core.backends.model import DTYPES, load_config, load_model, load_tokenizer, pick_device, stop_ids
from stacx_core.config import TrainingConfig, resolve_object
from stacx_core.data.prompts import load_prompts
from stacx_core.data.rendering import render_prompt
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.planning.layout import Layout
from stacx_core.rollout.engine import GenerationRequest, RolloutEngine, SamplingParams
from stacx_core.rollout.episode_rollout import EpisodeEvaluation, sampled_or_played
from stacx_core.rollout.evaluation import Evaluation, PromptEvaluation
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.parity import probe_parity
from stacx_core.rollout.protocol import RollIn
from stacx_core.rollout.sampled import SampledRollout
from stacx_core.seeds import sub_seed
from stacx_core.trainer.learner import Learner, policy_role
from stacx_core.trainer.models import active_roles, check_vocabularies, other_models, scoring_models, shortest_context
from stacx_core.trainer.pools import pools_of
from stacx_core.trainer.setup import RunSetup


class LanguageSetup(RunSetup):
    """See :class:`RunSetup`."""

    def __init__(self, config: TrainingConfig, args: Args) -> None:
        self.args = args
        self.policy = policy_role(active_roles(config, args))
        self.tokenizer = load_tokenizer(args.hf_checkpoint)
        _check_layouts(config, args)
        others = other_models(config, args)
        scorers = scoring_models(args.eval_rm_type or args.rm_type, args)
        check_vocabularies(args.hf_checkpoint, [*others, *scorers])
        context = shortest_context(args.hf_checkpoint, others)
        chosen = resolve_object(config.rollout)
        make = sampled_or_played if chosen is SampledRollout else chosen
        self.roll_in: RollIn = make(args, self.tokenizer, context)
        self.evaluation = _evaluation(args, self.tokenizer, shortest_context(args.hf_checkpoint, scorers))

    def engine(self, model: nn.Module) -> RolloutEngine:
        """See :class:`RunSetup`."""
        if self.args.rollout_engine == "local":
            return LocalEngine(model, stop_ids(model, self.tokenizer), self.args.rollout_max_running)
        from stacx_core.rollout.sglang.policy import policy_servers  # Its HTTP client is of no use to other runs.

        return policy_servers(self.args, model, self.tokenizer)

    def before_training(self, learner: Learner, engine: RolloutEngine, completed: int) -> None:
        """Compare engine, trainer and teacher where the engine plays the policy and nobody has switched it off.

        Raises:
            ParityError: They differ by more than they may.
        """
        if not self.policy.sync_to_rollout or not self.args.parity_probe_limit:
            return
        teacher = getattr(self.roll_in, "teacher", None) if completed == 0 else None
        with engine.weights_at_rest():
            probe_parity(self.args, self.tokenizer, engine, learner.policy_log_probs, teacher)

    def save(self, folder: Path) -> None:
        """See :class:`RunSetup`."""
        self.tokenizer.save_pretrained(folder)


def _check_layouts(config: TrainingConfig, args: Args) -> None:
    """Refuse a model that the backend does not have, or that its layout over processes does not fit."""
    if args.backend != "megatron":
        return
    from stacx_core.backends.megatron.config import check_model  # Megatron-core is an extra.
    from stacx_core.backends.megatron.layout import check

    layout = Layout.of(args, pools_of(config, args)[0].size)
    named = {args.get(role.load_arg or "hf_checkpoint", None) for role in active_roles(config, args)}
    for checkpoint in sorted({args.hf_checkpoint, args.ref_load, *named} - {None}):
        model = load_config(checkpoint)
        check_model(model)
        check(layout, model)


def sample_responses(config: TrainingConfig, args: Args, output: Path, count: int) -> None:
    """Answer so many prompts, the first ones again where there are fewer, and write a JSON line for each response.

    Raises:
        ConfigError, DataError, ModelError: Prompts or model cannot be used.
    """
    if args.prompt_data is None:
        raise ConfigError("name the prompts with --prompt-data")
    disable_progress_bar()
    tokenizer = load_tokenizer(args.hf_checkpoint)
    rows = load_prompts(args.prompt_data, input_key=args.input_key, label_key=args.label_key, seed=args.seed)
    model = load_model(args.hf_checkpoint, DTYPES[args.dtype], pick_device(args.device))
    chosen = [rows[number % len(rows)] for number in range(count)]
    params = SamplingParams(
        args.rollout_max_response_len, args.rollout_temperature, args.rollout_top_p, args.rollout_top_k
    )
    requests = [
        GenerationRequest(
            render_prompt(row, tokenizer, args.apply_chat_template), [sub_seed(args.seed, "draw", number)]
        )
        for number, row in enumerate(chosen)
    ]
    engine = LocalEngine(model, stop_ids(model, tokenizer), args.rollout_max_running)
    with output.open("w", encoding="utf-8") as lines:
        for row, (answer,) in zip(chosen, engine.generate(requests, params), strict=True):
            text = tokenizer.decode(answer.ids, skip_special_tokens=True)
            lines.write(json.dumps({"prompt": row.prompt, "response": text, "finish": answer.finish}) + "\n")


def _evaluation(args: Args, tokenizer: PreTrainedTokenizerBase, context: int | None) -> Evaluation | None:
    if args.eval_tasks is not None:
        return EpisodeEvaluation(args, tokenizer, context)
    if args.eval_prompt_data is None:
        return None
    if args.rm_type is None and args.eval_rm_type is None:
        raise ConfigError("--eval-prompt-data needs --rm-type or --eval-rm-type to score the answers")
    return PromptEvaluation(args, tokenizer, context)
