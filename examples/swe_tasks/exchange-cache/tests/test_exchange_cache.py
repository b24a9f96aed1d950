import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from exchange.converter import Converter
from exchange.rates import Rates

TABLE = {("EUR", "USD"): 1.1, ("EUR", "JPY"): 160.0, ("USD", "JPY"): 145.0}


class Exchange(unittest.TestCase):
    def test_each_pair_has_its_rate(self):
        converter = Converter(Rates(TABLE))
        self.assertEqual(converter.convert(10, "EUR", "USD"), 11.0)
        self.assertEqual(converter.convert(10, "EUR", "JPY"), 1600.0)
        self.assertEqual(converter.convert(10, "USD", "USD"), 10)

    def test_no_pair_is_asked_for_twice(self):
        rates = Rates(TABLE)
        converter = Converter(rates)
        for _ in range(3):
            converter.convert(1, "EUR", "USD")
            converter.convert(1, "USD", "JPY")
        self.assertEqual(rates.asked, 2)

    def test_converters_do_not_share(self):
        Converter(Rates(TABLE)).convert(1, "EUR", "USD")
        self.assertEqual(Converter(Rates({("EUR", "USD"): 2.0})).convert(1, "EUR", "USD"), 2.0)
