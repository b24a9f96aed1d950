"""That a loss scores the tokens of the response, and at the temperature they were sampled at."""

from __future__ import annotations

from dataclasses import replace

from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.rows import VOCABULARY, Row
from stacx_core.testing.subject import Outcome
from stacx_core.testing.trial import Trial, close, during, require_same, require_tokens
from stacx_core.testing.variants import COLD

SAMPLED = {"log_probs", "rollout_log_probs", "rewards", "advantages"}
"""A role that reads one of these learns from what was sampled, at the temperature it was sampled at."""


@check("every", waivable=True)
def prompt_tokens(trial: Trial) -> None:
    """With the model's output held fixed, other tokens in the prompts change neither the loss nor the gradient.

    Finds: targets one position off.
    """
    require_tokens(trial)
    change = "with other tokens in the prompts, and the same output"
    with during(change):
        found = trial.run([_other_prompt(row) for row in trial.rows])
    require_same(found, trial.outcome, change)


@check("defaults", shrinks=False, waivable=True)
def last_token(trial: Trial) -> None:
    """With the model's output held fixed, another last trained token changes the gradient where it is predicted.

    Finds: a last token that is left out, targets one position off.
    """
    require_tokens(trial)
    if trial.subject.role.head != "lm":
        raise NotApplicable("a scalar head predicts no tokens")
    trained = [row for row in trial.rows if trial.outcome.gradients[row.index].any() and any(row.sample.mask)]
    found = trial.run([_other_end(row) if row in trained else row for row in trial.rows])
    before, after = trial.outcome.gradients, found.gradients
    places = [(row.index, row.sample.prompt_length - 1 + _last(row)) for row in trained]
    if places and all(close(after[i][at], before[i][at], 1e-9) for i, at in places):
        raise Wrong("another token in the place of the last trained one of each response changes no gradient there")


def _last(row: Row) -> int:
    """The last trained token of the response, counted from 0."""
    return max(position for position, kept in enumerate(row.sample.mask) if kept)


def _other_prompt(row: Row) -> Row:
    length = row.sample.prompt_length
    other = [(token + 1) % VOCABULARY for token in row.sample.tokens[:length]]
    return row.with_sample(tokens=[*other, *row.sample.tokens[length:]])


def _other_end(row: Row) -> Row:
    tokens, at = list(row.sample.tokens), row.sample.prompt_length + _last(row)
    tokens[at] = (tokens[at] + 1) % VOCABULARY
    return row.with_sample(tokens=tokens)


@check("main", waivable=True)
def temperature(trial: Trial) -> None:
    """At another sampling temperature, output scaled by it gives the same loss and a gradient scaled back; a loss on
    given text may ignore the temperature instead.

    Finds: log-probs at temperature 1 beside those of a policy that sampled at another one.
    """
    require_tokens(trial)
    expected, scaled = _at(trial, 1.0, 1.0), _at(trial, COLD, COLD)
    scaled = replace(scaled, gradients={index: COLD * gradient for index, gradient in scaled.gradients.items()})
    change = f"at temperature {COLD}, with the output scaled by it"
    if trial.subject.role.head == "lm" and SAMPLED & {*trial.subject.active_reads()}:
        require_same(scaled, expected, change, metrics=False)
        return
    try:
        require_same(_at(trial, COLD, 1.0), expected, "", metrics=False)
    except Wrong:
        require_same(scaled, expected, change, metrics=False)


def _at(trial: Trial, degree: float, scale: float) -> Outcome:
    """The outcome at a sampling temperature, with scaled output."""
    subject = replace(trial.subject, args=trial.subject.args.replace(rollout_temperature=degree))
    outputs = {index: scale * output for index, output in trial.outputs.items()}
    return subject.step(subject.prepare(subject.batch(trial.rows)), outputs)
