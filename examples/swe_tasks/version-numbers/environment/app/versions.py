"""Takes version numbers apart: MAJOR.MINOR.PATCH, and perhaps -LABEL of letters and digits."""

import re

_VERSION = re.compile(r"(\d).(\d).(\d)(?:-(\w+))?")


def parse(text):
    """The three numbers and the label, None if there is none."""
    found = _VERSION.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no version number")
    major, minor, patch, label = found.groups()
    return int(major), int(minor), int(patch), label
