"""Converts amounts with remembered rates."""


class Converter:
    _known = {}

    def __init__(self, rates):
        self._rates = rates

    def convert(self, amount, source, target):
        """The amount in another currency, rounded to two digits."""
        if source == target:
            return amount
        if source not in self._known:
            self._known[source] = self._rates.rate(source, target)
        return round(amount * self._known[source], 2)
