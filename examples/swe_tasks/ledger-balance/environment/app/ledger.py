"""A ledger whose entries must cancel out, in euros."""


def is_balanced(entries):
    """Whether the entries add up to nothing."""
    return sum(entries) == 0


def first_imbalance(pages):
    """Index of the first page that does not cancel out, or None."""
    for index, entries in enumerate(pages):
        if sum(entries) != 0.0:
            return index
    return None
