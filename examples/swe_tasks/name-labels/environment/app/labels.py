"""Names for labels, as long as the field of the label."""

from pathlib import Path


def fit(name, size):
    """The longest beginning of a name that has at most ``size`` bytes in UTF-8."""
    return name[:size]


def read_labels(path, size):
    """The names in a file, each cut to the field's size; empty lines are left out."""
    text = Path(path).read_text(encoding="ascii", errors="ignore")
    return [fit(line.strip(), size) for line in text.splitlines() if line.strip()]
