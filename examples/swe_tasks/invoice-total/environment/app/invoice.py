"""Adds up the positions of an invoice, in cents."""


def summary(positions):
    """Sum, largest and smallest amount of a list of (text, cents); zeros for an empty one."""
    total = sum(cents for _, cents in positions)
    max = min = 0
    for number, (_, cents) in enumerate(positions):
        if number == 0:
            max = min = cents
        else:
            max = max(max, cents)
            min = min(min, cents)
    return {"total": total, "largest": max, "smallest": min}
