"""Greets people on the command line."""

import argparse


def parser():
    flags = argparse.ArgumentParser(description="Greet somebody.")
    flags.add_argument("name")
    flags.add_argument("--shout", type=bool, default=False, help="in capital letters")
    flags.add_argument("--times", default=1, help="how often")
    return flags


def main(arguments=None):
    given = parser().parse_args(arguments)
    text = f"Hello, {given.name}!"
    if given.shout:
        text = text.upper()
    for _ in range(given.times):
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
