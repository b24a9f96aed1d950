"""Counts the visits of customers, who are numbers."""

from visits import storage


class Counter:
    def __init__(self, path):
        self._path = path
        self._counts = storage.load(path)

    def visit(self, customer):
        """Count a visit; returns how many there were."""
        self._counts[customer] = self._counts.get(customer, 0) + 1
        storage.save(self._path, self._counts)
        return self._counts[customer]

    def customers(self):
        return sorted(self._counts)
