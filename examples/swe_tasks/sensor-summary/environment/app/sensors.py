"""Sums up the readings of sensors."""


def readings(lines):
    """The numbers in lines of text; empty lines are left out."""
    for line in lines:
        if line.strip():
            yield float(line)


def summary(values):
    """Count, average and highest value; zeros for no values."""
    total = sum(values)
    count = sum(1 for _ in values)
    highest = max(values, default=0.0)
    return {"count": count, "average": total / count if count else 0.0, "highest": highest}
