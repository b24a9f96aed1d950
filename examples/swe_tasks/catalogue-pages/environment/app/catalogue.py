"""Cuts a catalogue into pages; the first is page 1."""


def page_count(items, size):
    """How many pages there are."""
    if size < 1:
        raise ValueError("a page has at least one item")
    return len(items) // size


def page(items, number, size):
    """The items of one page."""
    if not 1 <= number <= max(1, page_count(items, size)):
        raise IndexError(f"there is no page {number}")
    start = (number - 1) * size + 1
    return items[start : start + size]
