"""How an environment is found by its name."""

from __future__ import annotations

from stacx_core.config import resolve_object
from stacx_core.errors import ConfigError, RecipeError, nearest
from stacx_core.knobs import Args
from stacx_core.rollout.environment import MakeEnvironment, NumberedEnvironments

_METHODS = ("reset", "step", "render", "close")
_HARBOR = "harbor"


def has_numbered_tasks(reference: str | None) -> bool:
    """Whether a seed of these environments is ``2 * number`` of a training task, or ``2 * number + 1`` of a held-out
    one, so that a pass over them meets each of them once."""
    return reference is not None and reference.startswith(f"{_HARBOR}:")


def task_contents(reference: str | None) -> str:
    """A hash of the files that the tasks of these environments are made of, "" where they are made of none.

    Raises:
        DataError: The tasks of the folder cannot be used.
    """
    if reference is None or not has_numbered_tasks(reference):
        return ""
    from stacx_core.swe.agent.harbor import harbor_contents

    return harbor_contents(reference.partition(":")[2])


def run_environment(args: Args) -> MakeEnvironment:
    """What makes the environments of ``--environment``, which has as many tasks as a run asks for.

    Raises:
        ConfigError: ``--num-tasks`` or ``--eval-tasks`` is more than there are, or as of :func:`load_environment`.
        DataError: As of :func:`load_environment`.
    """
    make = load_environment(args.environment)
    if isinstance(make, NumberedEnvironments):
        _check_count("--num-tasks", args.num_tasks, make.num_training, "to train on", args.environment)
        _check_count("--eval-tasks", args.eval_tasks, make.num_held_out, "held out", args.environment)
    return make


def _check_count(flag: str, wanted: int | None, there: int, what: str, reference: str) -> None:
    """Refuse more tasks than there are; where there is none at all, its first one says so."""
    if there and wanted is not None and wanted > there:
        raise ConfigError(
            f"{flag} is {wanted}, but --environment {reference} has {there} task{'s' * (there != 1)} {what}; "
            f"pass {flag} {there}{' or less' * (there > 1)}"
        )


def load_environment(reference: str) -> MakeEnvironment:
    """What makes the environments called ``reference``.

    Args:
        reference: ``textarena:NAME``, ``reasoning_gym:NAME[?OPTION=VALUE]``, ``harbor:FOLDER[?OPTION=VALUE]`` or
            ``package.module:Class``, a class (or function) that is called without arguments.

    Raises:
        ConfigError: There is no such environment, its package is not installed, or it cannot be called.
        DataError: The tasks of the folder cannot be used.
    """
    scheme, _, name = reference.partition(":")
    if scheme == "textarena":
        from stacx_core.rollout.environments.textarena_game import textarena_game

        return textarena_game(name)
    if scheme == "reasoning_gym":
        from stacx_core.rollout.environments.reasoning_gym_task import reasoning_gym_task

        return reasoning_gym_task(name)
    if scheme == _HARBOR and name:
        from stacx_core.swe.agent.harbor import harbor_tasks

        return harbor_tasks(name)
    if not name:
        raise ConfigError(
            f"no environment is called {reference!r}{nearest(scheme, ['textarena', 'reasoning_gym', _HARBOR])}; write "
            "textarena:NAME, reasoning_gym:NAME, harbor:FOLDER, or name your own class as 'package.module:Class'"
        )
    return _own(reference)


def _own(reference: str) -> MakeEnvironment:
    try:
        made: MakeEnvironment = resolve_object(reference)
    except RecipeError as error:
        raise ConfigError(f"environment {reference!r}: {error.message}", *error.hints) from error
    if not callable(made):
        raise ConfigError(f"environment {reference!r} is of type {type(made).__name__}; it must be a class")
    missing = [method for method in _METHODS if isinstance(made, type) and not hasattr(made, method)]
    if missing:
        raise ConfigError(
            f"environment {reference!r} has no {', '.join(missing)}; an environment has {', '.join(_METHODS)}"
        )
    return made
