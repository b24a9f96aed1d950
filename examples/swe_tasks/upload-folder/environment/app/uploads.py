"""Where uploaded files go."""

import os


def target(folder, name):
    """The path of an uploaded file.

    Raises ValueError when it would lie outside of the folder, or when it is the folder itself.
    """
    root = os.path.realpath(folder)
    path = os.path.join(root, name)
    if ".." in name and not os.path.realpath(path).startswith(root):
        raise ValueError(f"{name!r} leaves the folder")
    if "/../" in name:
        raise ValueError(f"{name!r} is not plain")
    return path
