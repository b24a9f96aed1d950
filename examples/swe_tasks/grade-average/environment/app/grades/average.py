"""Averages of grades."""


def average(grades):
    """The mean of the grades, None without any."""
    if not grades:
        return None
    return sum(grades) // len(grades)


def weighted_average(grades, weights):
    """The mean of the grades, each counted as often as its weight says; None without any."""
    if not grades:
        return None
    total = sum(grade * weight for grade, weight in zip(grades, weights))
    return total // sum(weights)
