"""`stacx list-recipes` and `stacx plugins`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from stacx_core.cli.options import (
    Session,
    config_option,
    finish_report,
    json_option,
    load_leniently,
    plugin_options,
)
from stacx_core.cli.output import print_json, print_table
from stacx_core.config import DataSync, TrainingConfig
from stacx_core.plugin_discovery import PluginRecord, declared_recipes
from stacx_core.plugins import PluginHost, load


@click.command("list-recipes")
@json_option
@plugin_options
@config_option
@click.pass_context
def list_recipes(ctx: click.Context, as_json: bool) -> None:
    """List the recipes of all plugins.

    The recipes of plugins that cannot be used are listed with the reason. A role marked with * pushes its
    weights to the rollout engine.
    """
    rows = recipe_rows(load(ctx.ensure_object(Session).selection()))
    if as_json:
        print_json(rows)
        return
    print_table(
        ("NAME", "FAMILY", "ROLES", "SYNCS", "FROM", "STATUS", "DESCRIPTION"),
        [
            (
                row["name"],
                row["family"] or "-",
                ", ".join(f"{name}*" if name == row["rollout_role"] else name for name in row["roles"]) or "-",
                "; ".join(row["syncs"]) or "-",
                f"{row['distribution']} {row['version']}",
                row["status"],
                row["reason"] or row["description"],
            )
            for row in rows
        ],
    )


@click.command("plugins")
@json_option
@click.option("-v", "--verbose", is_flag=True, help="Also show the module, the hooks and the import time.")
@plugin_options
@config_option
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, verbose: bool) -> None:
    """List the installed plugins, also the broken ones with the reason.

    Each allowed plugin is imported to see whether it works.
    """
    host = load_leniently(ctx)
    if as_json:
        print_json([asdict(record) for record in host.records])
    else:
        _print_plugins(host, verbose)
    finish_report(ctx, host)


def recipe_rows(host: PluginHost) -> list[dict[str, Any]]:
    """Return one row per recipe, those of unusable plugins included, sorted by name and distribution."""
    rows = [
        {**_recipe_row(recipe.config), **_provider(recipe.plugin), "status": recipe.status, "reason": ""}
        for recipe in host.recipes
    ]
    for row in rows:
        if row["status"] == "conflict":
            row["reason"] = f"two plugins have this name; ask for {row['distribution']}:{row['name']}"
    for record in host.records:
        if record.status in ("failed", "incompatible", "disabled"):
            names = declared_recipes(record)
            rows += [_unusable_row(name, record) for name in names]
    return sorted(rows, key=lambda row: (row["name"], row["distribution"]))


def sync_text(sync: DataSync) -> str:
    """Return a sync in one line, as in "ref -> policy: ref_log_probs"."""
    arrow = "<->" if sync.mode == "exchange" else "->"
    back = f" | {', '.join(sync.reverse_keys)}" if sync.reverse_keys else ""
    return f"{sync.src} {arrow} {sync.dst}: {', '.join(sync.keys)}{back}"


def _recipe_row(config: TrainingConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "family": config.family,
        "roles": [role.name for role in config.roles],
        "rollout_role": next((role.name for role in config.roles if role.sync_to_rollout), None),
        "syncs": [sync_text(sync) for sync in config.syncs],
        "description": config.description,
    }


def _provider(record: PluginRecord) -> dict[str, str]:
    return {"distribution": record.distribution, "version": record.version}


def _unusable_row(name: str, record: PluginRecord) -> dict[str, Any]:
    empty: dict[str, Any] = {"family": "", "roles": [], "rollout_role": None, "syncs": [], "description": ""}
    return {"name": name, **empty, **_provider(record), "status": record.status, "reason": record.reason}


def _print_plugins(host: PluginHost, verbose: bool) -> None:
    headers = ["NAME", "VERSION", "STATUS", "PROVIDES", "FROM"]
    headers += ["MODULE", "HOOKS", "IMPORT"] if verbose else []
    rows = []
    for record in host.records:
        row = [
            record.name,
            record.version,
            record.status,
            ", ".join(record.recipes) or "-",
            record.distribution,
        ]
        if verbose:
            seconds = record.import_seconds
            time = "-" if seconds is None else f"{1000 * seconds:.0f} ms"
            row += [record.target, ", ".join(record.hooks) or "-", time]
        rows.append(row)
    print_table(headers, rows)
    for record in host.records:
        if record.reason:
            click.echo(f"{record.label}: {record.status}: {record.reason}")
