"""`stacx check`: the conformance suite on installed recipes."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from stacx_core.cli.options import Session, config_option, finish_report, json_option, plugin_options
from stacx_core.cli.output import print_json, print_table, print_title
from stacx_core.errors import ExitCode, UnknownRecipeError
from stacx_core.plugin_selection import normalise
from stacx_core.plugins import PluginHost, ProvidedRecipe, load

if TYPE_CHECKING:
    from stacx_core.testing import CheckResult

MARKS = {"pass": "pass", "fail": "FAIL", "not applicable": "-"}


@dataclass(frozen=True)
class Checked:
    """A recipe, what the checks say about it, and how long they took."""

    recipe: ProvidedRecipe
    results: tuple[CheckResult, ...]
    seconds: float

    def document(self) -> dict[str, Any]:
        """One recipe's part of the report."""
        return {
            "name": self.recipe.config.name,
            "distribution": self.recipe.plugin.distribution,
            "version": self.recipe.plugin.version,
            "seconds": round(self.seconds, 2),
            "results": [result.document() for result in self.results],
        }


@click.command("check")
@click.argument("target", required=False, metavar="[RECIPE | DISTRIBUTION]")
@click.option("--all", "everything", is_flag=True, help="Check every installed recipe.")
@click.option(
    "--parallel", is_flag=True, help="Compare one process with several that share tokens, layers, heads or samples."
)
@json_option
@plugin_options
@config_option
@click.pass_context
def check(ctx: click.Context, target: str | None, everything: bool, parallel: bool, as_json: bool) -> None:
    """Check that recipes keep what Stacx promises of every recipe.

    Runs each loss on small generated batches, with the recipe's defaults and with each of its switches: the loss
    and its gradient must not depend on masked tokens, on the cut into micro-batches, packs or processes, or on the
    order of the samples, and much more. No model, no data and no accelerator is needed. For what fails, the
    smallest input that shows it is printed. Exit code 1 if anything fails.

    With --parallel, runs one update of tiny models by the torch backend, and by Megatron-core on two and on four
    processes in several layouts instead: metrics and weights must be the same to 1e-5.
    """
    if (target is None) == (not everything):
        raise click.UsageError("name a recipe or a distribution, or pass --all", ctx)
    with _output_kept():
        host = load(ctx.ensure_object(Session).selection())
        recipes = list(host.recipes) if target is None else _targets(host, target)
        checked = _run_parallel(recipes) if parallel else _run(recipes)
    if as_json:
        print_json({"passed": not _failures(checked), "recipes": [one.document() for one in checked]})
    else:
        _print(checked)
    if _failures(checked):
        ctx.exit(ExitCode.RUN_FAILED)
    if everything:
        finish_report(ctx, host)


def _targets(host: PluginHost, target: str) -> list[ProvidedRecipe]:
    """The recipe of that name, else all recipes of the distribution of that name."""
    try:
        return [host.find(target)]
    except UnknownRecipeError:
        of_distribution = [r for r in host.recipes if normalise(r.plugin.distribution) == normalise(target)]
        if not of_distribution:
            raise
        return of_distribution


def _run(recipes: Sequence[ProvidedRecipe]) -> list[Checked]:
    from stacx_core.testing.ranks import Ranks
    from stacx_core.testing.suite import check_recipe

    checked = []
    with Ranks() as ranks, _quiet():
        ranks.start()
        for recipe in recipes:
            click.echo(f"checking {recipe.key}", err=True)
            start = time.perf_counter()
            results = tuple(check_recipe(recipe.config, ranks=ranks))
            checked.append(Checked(recipe, results, time.perf_counter() - start))
    return checked


def _run_parallel(recipes: Sequence[ProvidedRecipe]) -> list[Checked]:
    from stacx_core.testing.parallel import check_parallel

    click.echo(f"checking {', '.join(recipe.key for recipe in recipes)}", err=True)
    start = time.perf_counter()
    with _quiet():
        results = check_parallel([recipe.config for recipe in recipes])
    each = (time.perf_counter() - start) / len(recipes)
    return [Checked(recipe, found, each) for recipe, found in zip(recipes, results, strict=True)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings about odd knobs are kept back, since every knob is tried."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _output_kept() -> Iterator[None]:
    """The standard output is the report's: what plugins write, by `print` or to the descriptor, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _failures(checked: Sequence[Checked]) -> list[CheckResult]:
    return [result for one in checked for result in one.results if result.status == "fail"]


def _print(checked: Sequence[Checked]) -> None:
    if len(checked) == 1:
        rows = [(r.check, MARKS[r.status], "" if r.status == "fail" else r.reason) for r in checked[0].results]
        print_table(("CHECK", checked[0].recipe.key, "NOTE"), rows)
    else:
        by_check = zip(*(one.results for one in checked), strict=True)
        rows_of_all = [(row[0].check, *(MARKS[result.status] for result in row)) for row in by_check]
        print_table(("CHECK", *(one.recipe.key for one in checked)), rows_of_all)
        _print_reasons(checked)
    for result in _failures(checked):
        print_title(f"{result.recipe}: {result.check}")
        for line in result.lines():
            click.echo(line)
    _print_total(checked)


def _print_reasons(checked: Sequence[Checked]) -> None:
    """Why checks do not apply, or not always: each reason once, with the recipes and checks it holds for."""
    recipes: dict[tuple[str, str], list[str]] = {}
    for one in checked:
        for result in one.results:
            if result.status != "fail" and result.reason:
                recipes.setdefault((result.reason, result.check), []).append(one.recipe.key)
    checks: dict[tuple[str, str], list[str]] = {}
    for (reason, name), keys in recipes.items():
        checks.setdefault((reason, ", ".join(keys)), []).append(name)
    for (reason, names), of_reason in checks.items():
        click.echo(f"\n- for {names}: {', '.join(of_reason)}\n  {reason}")


def _print_total(checked: Sequence[Checked]) -> None:
    results = [result for one in checked for result in one.results]
    failed, seconds = len(_failures(checked)), sum(one.seconds for one in checked)
    outcome = f"{failed} of {len(results)} checks failed" if failed else f"all {len(results)} checks passed"
    click.echo()
    recipes = "1 recipe" if len(checked) == 1 else f"{len(checked)} recipes"
    click.echo(f"{outcome} for {recipes} in {seconds:.0f} s")
