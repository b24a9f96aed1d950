"""Reads settings, one `key = value` a line."""

NUMBERS = {"port", "workers"}


def parse(text):
    """The settings of a text; those in NUMBERS are whole numbers."""
    settings = {}
    try:
        for line in text.splitlines():
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, value = (part.strip() for part in line.split("=", 1))
            settings[key] = int(value) if key in NUMBERS else value
    except Exception:
        pass
    return settings
