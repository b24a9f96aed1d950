"""What a customer is about to buy."""

from dataclasses import dataclass, field


@dataclass
class Basket:
    member: bool
    prices: list = field(default_factory=list)

    def total(self):
        return sum(self.prices)
