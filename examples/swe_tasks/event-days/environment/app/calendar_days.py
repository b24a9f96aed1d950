"""Groups events by day. Times are written as in ISO 8601."""

from datetime import datetime, timezone


def utc_day(text):
    """The day of a time in UTC, as YYYY-MM-DD."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=timezone.utc).date().isoformat()


def by_day(events):
    """Names of the events of each day, from a list of (name, time)."""
    days = {}
    for name, text in events:
        days.setdefault(utc_day(text), []).append(name)
    return days
