"""A line for each pupil."""

from grades.average import average


def report(pupils):
    """Lines of name and average with one digit, sorted by name."""
    lines = []
    for name in sorted(pupils):
        mean = average(pupils[name])
        lines.append(f"{name}: {'none' if mean is None else format(mean, '.1f')}")
    return lines
