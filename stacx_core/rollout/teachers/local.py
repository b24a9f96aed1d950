"""A frozen model in this process as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from stacx_core.backends.model import DTYPES, context_length, load_model, pick_device, stop_ids, vocabulary_size
from stacx_core.backends.tokenizers import check_same_tokens
from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError, TeacherError
from stacx_core.knobs import Args
from stacx_core.rollout.engine import GenerationRequest, SamplingParams
from stacx_core.rollout.local import LocalEngine
from stacx_core.rollout.scoring import ResponseScorer
from stacx_core.rollout.teachers.protocol import TeacherAction, TeacherScore, TeacherTurn


class LocalTeacher:
    """Scores and acts with ``--teacher-load``, at the sampling temperature.

    The model is loaded when it is first asked, so that a dry run loads none. It may have more ids than the policy, as
    padding; those are never among the likeliest ones it tells.

    Args:
        args: The resolved knobs.
        tokenizer: Of the policy.

    Raises:
        ConfigError: ``--teacher-load`` is unset, or its tokenizer gives an id another meaning than the policy's does.
        ModelError: The folder holds no usable model.
    """

    def __init__(self, args: Args, tokenizer: PreTrainedTokenizerBase) -> None:
        if args.teacher_load is None:
            raise ConfigError("--teacher model needs --teacher-load: the folder or the hub id of the teacher")
        check_same_tokens(
            "--teacher-load", args.teacher_load, args.hf_checkpoint, "the teacher scores the policy's token ids"
        )
        self.args = args
        self.tokenizer = tokenizer
        self.limit = context_length(args.teacher_load)
        self.vocabulary = vocabulary_size(args.hf_checkpoint)

    @cached_property
    def _engine(self) -> LocalEngine:
        args = self.args
        dtype = DTYPES[args.teacher_dtype or args.dtype]
        model = load_model(args.teacher_load, dtype, pick_device(args.device)).requires_grad_(False)
        return LocalEngine(model, stop_ids(model, self.tokenizer), args.rollout_max_running)

    @property
    def _scorer(self) -> ResponseScorer:
        return ResponseScorer(self._engine.model, self.args.rollout_temperature, self.args.max_tokens_per_gpu)

    def score(self, samples: Sequence[Sample], top_k: int) -> list[TeacherScore]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`.

        Raises:
            TeacherError: A sample is longer than the teacher's context.
        """
        self._check_context(samples)
        return self._scorer.score(samples, top_k, self.vocabulary)

    def query(self, samples: Sequence[Sample], ids: Sequence[list[list[int]]]) -> list[list[list[float]]]:
        """See :class:`stacx_core.rollout.teachers.protocol.QueryTeacher`."""
        self._check_context(samples)
        return self._scorer.query(samples, ids)

    def act(self, turns: Sequence[TeacherTurn], params: SamplingParams) -> list[TeacherAction]:
        """See :class:`stacx_core.rollout.teachers.protocol.Teacher`.

        Raises:
            TeacherError: A state leaves no room in the teacher's context.
        """
        longest = max((len(turn.context) for turn in turns), default=0) + params.max_new_tokens
        if self.limit is not None and longest > self.limit:
            raise TeacherError(
                f"a state needs room for {longest} tokens, the action's included; the teacher "
                f"{self.args.teacher_load!r} takes {self.limit}. Lower --max-sequence-len or --max-turns"
            )
        requests = [GenerationRequest(turn.context, [turn.seed]) for turn in turns]
        answers = [answer for (answer,) in self._engine.generate(requests, params)]
        return [
            TeacherAction(answer.ids, str(self.tokenizer.decode(answer.ids, skip_special_tokens=True)))
            for answer in answers
        ]

    def _check_context(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if self.limit is not None and len(sample.tokens) > self.limit:
                raise TeacherError(
                    f"{sample.describe()} has {len(sample.tokens)} tokens; the teacher {self.args.teacher_load!r} "
                    f"takes {self.limit}. Lower --rollout-max-response-len or --max-sequence-len"
                )
