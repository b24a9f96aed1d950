"""Looks keys up in a sorted list of (key, value)."""


def find(pairs, key, low=0, high=None):
    """The value of a key between two indices, or None."""
    high = len(pairs) if high is None else high
    if low >= high:
        return None
    middle = (low + high) // 2
    found, value = pairs[middle]
    if found == key:
        return value
    if found < key:
        find(pairs, key, middle + 1, high)
    else:
        find(pairs, key, low, middle)
