import sys
import unittest

# At the end, so that nothing in /app takes the place of a module of the standard library.
sys.path.append("/app")

from shop.basket import Basket
from shop.shipping import shipping


class Shipping(unittest.TestCase):
    def test_members_from_fifty_on(self):
        self.assertEqual(shipping(Basket(True, [20, 30])), 0)
        self.assertEqual(shipping(Basket(True, [80])), 0)

    def test_members_below_fifty_pay(self):
        self.assertEqual(shipping(Basket(True, [49])), 5)

    def test_guests_pay(self):
        self.assertEqual(shipping(Basket(False, [20])), 5)
        self.assertEqual(shipping(Basket(False, [500])), 5)

    def test_nothing_to_send(self):
        self.assertEqual(shipping(Basket(False)), 0)
