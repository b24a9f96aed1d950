"""Sorts releases, written NAME-MAJOR.MINOR; a name may have dashes of its own."""


def split(release):
    """Name and version."""
    name, _, version = release.rpartition("-")
    return name, version


def newest_first(releases):
    """The releases by name, the newest of each name first."""
    return sorted(releases, key=split, reverse=True)
