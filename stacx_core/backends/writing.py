"""Files that are written while their process goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

T = TypeVar("T")


def copied(state: T) -> T:
    """The same containers with copies of the tensors in ordinary memory."""
    result: T = tree_map_only(torch.Tensor, copied_tensor, state)
    return result


def copied_tensor(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory."""
    return tensor.detach().to("cpu", copy=True)


class Writing:
    """Something that writes files, begun at once.

    Args:
        write: What writes them. In the background it must not use anything that the process changes meanwhile.
        background: Write them on a thread; else they are written when this returns.
    """

    def __init__(self, write: Callable[[], object], background: bool) -> None:
        self._write = write
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stacx-writing") if background else None
        if self._thread is not None:
            self._thread.start()
        else:
            write()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait until the files are written.

        Raises:
            Exception: What went wrong.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
