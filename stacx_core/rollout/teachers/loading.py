"""From ``--teacher`` to the teacher."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import PreTrainedTokenizerBase

from stacx_core.config import resolve_object
from stacx_core.errors import ConfigError, RecipeError, nearest
from stacx_core.knobs import Args
from stacx_core.rollout.teachers.guarded import GuardedTeacher
from stacx_core.rollout.teachers.local import LocalTeacher
from stacx_core.rollout.teachers.scripted import ScriptedTeacher

MODEL = "model"
"""The teacher that is a frozen model in this process."""

SGLANG = "sglang"
"""The teacher that is a model on SGLang servers."""


def load_teacher(args: Args, tokenizer: PreTrainedTokenizerBase, *, scores: bool) -> GuardedTeacher:
    """The teacher that the arguments name, guarded against its failures.

    Args:
        args: The resolved knobs. ``teacher`` is ``model``, ``sglang``, a function from observation to action, or a
            class with the methods of :class:`stacx_core.rollout.teachers.protocol.Teacher`, made with
            ``(args, tokenizer)``.
        tokenizer: Of the policy.
        scores: Whether it will be asked for scores, which a scripted expert cannot give.

    Raises:
        ConfigError: There is no such teacher, or it cannot do what is wanted.
        ModelError: The model's folder cannot be used.
        EngineError: The servers of ``sglang`` do not answer.
    """
    name = args.teacher
    if name == MODEL:
        return GuardedTeacher(LocalTeacher(args, tokenizer), args, timeout=None)
    if name == SGLANG:
        from stacx_core.rollout.sglang.teacher import SGLangTeacher

        return GuardedTeacher(SGLangTeacher(args, tokenizer, scores=scores), args, timeout=None)
    target = _resolve(name)
    if inspect.isclass(target):
        lacking = [method for method in ("score", "act") if not callable(getattr(target, method, None))]
        if lacking:
            raise ConfigError(f"--teacher {name}: the class has no method {' and no '.join(lacking)}")
        make: Any = target
        return GuardedTeacher(make(args, tokenizer), args, timeout=args.teacher_timeout)
    if not callable(target) or inspect.iscoroutinefunction(target):
        raise ConfigError(f"--teacher {name} must be a class, or a plain function from an observation to an action")
    if scores:
        raise ConfigError(
            f"--teacher {name} is a function, which can act but has no log-probs; this recipe needs scores: "
            "use --teacher model, or a class with a method score"
        )
    scripted = ScriptedTeacher(target, tokenizer, args.apply_chat_template)
    return GuardedTeacher(scripted, args, timeout=args.teacher_timeout)


def _resolve(name: str | None) -> Any:
    if name is None:
        raise ConfigError("name a teacher with --teacher: model, sglang, or package.module:name")
    if ":" not in name:
        raise ConfigError(
            f"no teacher is called {name!r}{nearest(name, [MODEL, SGLANG])}; use model or sglang, or name your own as "
            "'package.module:name'"
        )
    try:
        return resolve_object(name)
    except RecipeError as error:
        raise ConfigError(f"--teacher {name}: {error.message}", *error.hints) from error
