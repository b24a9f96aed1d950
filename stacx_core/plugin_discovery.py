"""Finding plugins by the metadata of installed distributions, without importing any of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from stacx_core.plugin_selection import normalise

logger = logging.getLogger(__name__)

GROUP = "stacx.recipes"

STATUSES = ("available", "loaded", "disabled", "failed", "incompatible", "conflict")

FIRST_PARTY: Mapping[str, tuple[str, ...]] = {
    "stacx-plugin-grpo": (
        "grpo", "gspo", "cispo", "dapo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo",
    ),
    "stacx-plugin-distill": ("opd", "self_distill"),
    "stacx-plugin-dagger": ("online_dagger", "mixture_dagger_opd", "mixture_aggrevate_opd"),
    "stacx-plugin-preference": ("dpo", "reward_model"),
}  # fmt: skip
"""Distribution -> its recipes for language models, so that asking for one of them says what to install."""

_BUILDS_RECIPE = re.compile(r"(?:\brecipe\(|\bTrainingConfig\(\s*name=)\s*[\"']([\w.-]+)[\"']")


@dataclass(frozen=True)
class PluginRecord:
    """What is known of one plugin.

    Args:
        name: of its entry point.
        distribution, version: of the package that declares it.
        target: the module (or "module:object") the entry point names.
        status: one of `STATUSES`. "available" means found and not yet imported.
        reason: why it is not "loaded".
        recipes: names of its usable recipes.
        hooks: names of the hooks it implements.
        import_seconds: time its import took, None if it was not imported.
    """

    name: str
    distribution: str
    version: str
    target: str
    status: str = "available"
    reason: str = ""
    recipes: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    import_seconds: float | None = None

    @property
    def key(self) -> str:
        """Unique among the plugins of an environment."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def module(self) -> str:
        """Name of the module the entry point imports."""
        return self.target.partition(":")[0].strip()


def discover(distributions: Iterable[metadata.Distribution] | None = None) -> list[PluginRecord]:
    """Return the plugins of all distributions on `sys.path`, sorted by distribution and name.

    Of several copies of one distribution the first on the path with complete metadata counts: it is the one
    Python imports. Metadata that cannot be read gives a record with status "failed".
    """
    found: dict[str, tuple[bool, list[PluginRecord]]] = {}
    for distribution in metadata.distributions() if distributions is None else distributions:
        records = _records(distribution)
        if records:
            complete = all(record.status == "available" for record in records)
            key = normalise(records[0].distribution)
            if key not in found or (complete and not found[key][0]):
                found[key] = (complete, records)
    records = [record for _, group in found.values() for record in group]
    return sorted(records, key=lambda record: (normalise(record.distribution), record.name))


def declared_recipes(record: PluginRecord) -> set[str]:
    """Return names of the recipes that an unusable plugin would provide, without importing it.

    Its source is searched as text; if that tells nothing, the names are guessed from its distribution or its
    entry point.
    """
    sources = [file.read_text(encoding="utf-8", errors="replace") for file in _source_files(record.module)]
    names = {name for source in sources for name in _BUILDS_RECIPE.findall(source)}
    return names or set(FIRST_PARTY.get(normalise(record.distribution), (record.name,)))


def _records(distribution: metadata.Distribution) -> list[PluginRecord]:
    text = distribution.read_text("entry_points.txt") or ""
    if GROUP not in text:
        return []
    name, version, reason = _identity(distribution)
    status = "failed" if reason else "available"
    try:
        points = [point for point in distribution.entry_points if point.group == GROUP]
        return [PluginRecord(p.name, name, version, p.value, status, reason) for p in points]
    except Exception as error:
        return [PluginRecord(name, name, version, "", "failed", f"entry_points.txt cannot be read: {error}")]


def _identity(distribution: metadata.Distribution) -> tuple[str, str, str]:
    """Return name, version, and what is wrong with the metadata ("" if nothing is)."""
    folder = Path(str(getattr(distribution, "_path", "unknown")))
    stem_name, _, stem_version = folder.stem.partition("-")
    name: str | None = None
    version: str | None = None
    try:
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
    except Exception:  # what is raised for missing or unreadable metadata differs between Python versions
        logger.debug("unreadable metadata in %s", folder, exc_info=True)
    if name and version:
        return name, version, ""
    reason = f"its metadata has no name and version: left over from an uninstalled package? Delete {folder}"
    return name or normalise(stem_name), version or stem_version or "unknown", reason


def _source_files(module: str) -> Iterator[Path]:
    top = module.partition(".")[0]
    spec = find_spec(top) if top else None
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        yield from sorted(Path(folder).rglob("*.py"))
    if not spec.submodule_search_locations and spec.origin and spec.origin.endswith(".py"):
        yield Path(spec.origin)
