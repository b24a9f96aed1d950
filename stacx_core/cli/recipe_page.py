"""`stacx show-recipe`: everything that can be said about a recipe before it runs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import click

from stacx_core.aggregations import AGGREGATIONS, SYMBOLS
from stacx_core.batch_keys import PRODUCERS
from stacx_core.cli.listing import sync_text
from stacx_core.cli.options import Session, config_option, json_option, plugin_options
from stacx_core.cli.output import print_json, print_table, print_title
from stacx_core.config import ModelRole, TrainingConfig
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Knob
from stacx_core.modality import LANGUAGE
from stacx_core.plugins import HOST, ProvidedRecipe, load

AGGREGATION_KNOB = "loss_aggregation"


@click.command("show-recipe")
@click.argument("name")
@json_option
@plugin_options
@config_option
@click.pass_context
def show_recipe(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about the recipe NAME.

    Its roles and syncs, the batch keys it reads and who writes them, the advantage pipeline in order, the
    aggregation, and every knob with its default for this recipe. NAME may be qualified as distribution:name.
    """
    provided = load(ctx.ensure_object(Session).selection()).find(name)
    page = recipe_page(provided)
    if as_json:
        print_json(page)
    else:
        _print_page(page)


def recipe_page(provided: ProvidedRecipe) -> dict[str, Any]:
    """Return the page as a document that serialises to JSON."""
    config, plugin = provided.config, provided.plugin
    return {
        "name": config.name,
        "family": config.family,
        "modality": config.modality.name,
        "description": config.description,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "status": provided.status,
        "rollout": config.rollout,
        "rollout_fields": list(config.rollout_fields),
        "requires": [_flag(config, name) for name in config.requires],
        "roles": [_role(config, role) for role in config.roles],
        "syncs": [
            {
                "src": sync.src,
                "dst": sync.dst,
                "mode": sync.mode,
                "keys": list(sync.keys),
                "reverse_keys": list(sync.reverse_keys),
                "conditional": sync.when is not None,
                "text": sync_text(sync),
            }
            for sync in config.syncs
        ],
        "batch_keys": _batch_keys(config),
        "advantage_pipeline": [
            {"role": role.name, "stage": _reference(stage), "does": _summary(stage)}
            for role in config.roles
            for stage in role.prepare
        ],
        "aggregation": _aggregation(config),
        "knobs": _knobs(provided),
    }


def _aggregation(config: TrainingConfig) -> dict[str, Any]:
    knob = next(knob for knob in HOST_KNOBS if knob.name == AGGREGATION_KNOB)
    name = config.defaults.get(knob.name, knob.default)
    return {
        "default": name,
        "recipe_default": knob.name in config.defaults,
        "formula": AGGREGATIONS[name],
        "symbols": SYMBOLS,
        "flag": knob.flag,
        "choices": list(knob.choices),
    }


def _summary(stage: Any) -> str:
    """Return the first line of a stage's docstring, read from its source so that nothing imports torch."""
    if not isinstance(stage, str):
        return (inspect.getdoc(stage) or "").partition("\n")[0]
    module, _, name = stage.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    except (ImportError, OSError, UnicodeDecodeError):
        return ""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    texts = [ast.get_docstring(node) or "" for node in functions if node.name == name]
    return texts[0].partition("\n")[0] if texts else ""


def _role(config: TrainingConfig, role: ModelRole) -> dict[str, Any]:
    return {
        "name": role.name,
        "specialization": _reference(role.specialization_cls),
        "head": role.head if config.modality == LANGUAGE else None,
        "inputs_key": role.inputs_key,
        "trainable": role.trainable,
        "sync_to_rollout": role.sync_to_rollout,
        "checkpoint": "--" + (role.load_arg or "hf_checkpoint").replace("_", "-"),
        "pool": role.pool,
    }


def _batch_keys(config: TrainingConfig) -> list[dict[str, Any]]:
    """Return what each role reads, in the order in which the stages write it."""
    rows: list[dict[str, Any]] = []
    for role in config.roles:
        for key, conditions in role.reads.items():
            rows.append(
                {
                    "role": role.name,
                    "key": key,
                    "element": config.batch_keys[key].element,
                    "written_by": _producer(config, role, key),
                    "when": [_condition(config, condition) for condition in conditions],
                    "sent_to": _sent_to(config, role, key),
                    "description": config.batch_keys[key].description,
                }
            )
    return sorted(rows, key=lambda row: (row["role"], PRODUCERS.index(config.batch_keys[row["key"]].producer)))


def _producer(config: TrainingConfig, role: ModelRole, key: str) -> str:
    """Say who writes a key for a role: a sync, the rollout if the recipe demands it, or the usual stage."""
    for sync in config.syncs:
        for source, target, keys in (
            (sync.src, sync.dst, sync.keys),
            (sync.dst, sync.src, sync.reverse_keys),
        ):
            if target == role.name and key in keys:
                return f"sync from {source} ({sync.mode})"
    if key in config.rollout_fields:
        return "rollout"
    usual = config.batch_keys[key].producer
    return f"forward of {role.name}" if usual == "sync" else usual


def _sent_to(config: TrainingConfig, role: ModelRole, key: str) -> list[str]:
    """The roles that always get the key from this one, for which it is computed whatever its own loss reads."""
    always = [sync for sync in config.syncs if sync.when is None]
    there = [sync.dst for sync in always if sync.src == role.name and key in sync.keys]
    back = [sync.src for sync in always if sync.dst == role.name and key in sync.reverse_keys]
    return [*there, *back]


def _knobs(provided: ProvidedRecipe) -> list[dict[str, Any]]:
    """Return every knob of a run of the recipe, the recipe's own first."""
    config = provided.config
    own = (*config.knobs, *config.modality.knobs)
    hosts = [knob for knob in config.offered_knobs if knob not in own]
    return [
        *(_knob(config, knob, provided.plugin.distribution) for knob in own),
        *(_knob(config, knob, HOST.distribution) for knob in hosts),
    ]


def _knob(config: TrainingConfig, knob: Knob, origin: str) -> dict[str, Any]:
    return {
        "name": knob.name,
        "default": config.defaults.get(knob.name, knob.default),
        "recipe_default": knob.name in config.defaults,
        "type": knob.type.__name__,
        "choices": list(knob.choices),
        "flag": knob.flag,
        "environment": knob.env,
        "key": knob.key,
        "origin": origin,
        "help": knob.help,
    }


def _condition(config: TrainingConfig, condition: str) -> str:
    knob, _, value = condition.partition("=")
    return f"{_flag(config, knob)} {value}".rstrip()


def _flag(config: TrainingConfig, name: str) -> str:
    return next(knob.flag for knob in config.offered_knobs if knob.name == name)


def _reference(target: Any) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"


def _print_page(page: dict[str, Any]) -> None:
    family = f", family {page['family']}" if page["family"] else ""
    click.echo(f"{page['name']} ({page['distribution']} {page['version']}{family})")
    click.echo(page["description"])
    _print_roles(page)
    print_title("Batch keys")
    print_table(
        ("ROLE", "KEY", "ELEMENT", "WRITTEN BY", "WHEN"),
        [(row["role"], row["key"], row["element"], row["written_by"], _when(row)) for row in page["batch_keys"]],
    )
    print_title("Advantage pipeline, over the whole batch before any split")
    for i, row in enumerate(page["advantage_pipeline"], start=1):
        click.echo(f"{i}. {row['role']}: {row['stage']}")
        click.echo(f"   {row['does']}")
    if not page["advantage_pipeline"]:
        click.echo("none")
    print_title("Aggregation")
    aggregation = page["aggregation"]
    click.echo(f"{aggregation['default']} ({aggregation['flag']}: {', '.join(aggregation['choices'])})")
    click.echo(f"loss of a step = {aggregation['formula']}")
    click.echo(aggregation["symbols"])
    print_title("Rollout")
    inputs = dict.fromkeys(role["inputs_key"] for role in page["roles"])
    rewards = ["rewards"] if any(row["key"] == "rewards" for row in page["batch_keys"]) else []
    click.echo(f"{page['rollout']}, delivers {', '.join([*inputs, *rewards, *page['rollout_fields']])}")
    click.echo(f"must be set: {', '.join(page['requires']) or 'nothing'}")
    print_title("Knobs")
    print_table(
        ("FLAG", "DEFAULT", "ENVIRONMENT", "CONFIG KEY", "FROM"),
        [(row["flag"], _default_text(row), row["environment"], row["key"], row["origin"]) for row in page["knobs"]],
    )


def _when(row: dict[str, Any]) -> str:
    if row["sent_to"]:
        return f"always (sent to {', '.join(row['sent_to'])})"
    return " or ".join(row["when"]) or "always"


def _print_roles(page: dict[str, Any]) -> None:
    print_title("Roles")
    print_table(
        ("NAME", "SPECIALIZATION", "HEAD", "TRAINED", "TO ROLLOUT", "CHECKPOINT", "POOL"),
        [
            (
                role["name"],
                role["specialization"],
                role["head"] or "-",
                _yes(role["trainable"]),
                _yes(role["sync_to_rollout"]),
                role["checkpoint"],
                role["pool"] or "-",
            )
            for role in page["roles"]
        ],
    )
    print_title("Syncs")
    lines = [
        f"{sync['mode']} {sync['text']}{' (conditional)' if sync['conditional'] else ''}" for sync in page["syncs"]
    ]
    click.echo("\n".join(lines) or "none")


def _default_text(row: dict[str, Any]) -> str:
    default = row["default"]
    text = "-" if default is None else ("on" if default else "off") if row["type"] == "bool" else str(default)
    return f"{text} (recipe)" if row["recipe_default"] else text


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
