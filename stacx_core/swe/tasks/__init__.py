"""Tasks in the Harbor format, and the folders they are read from."""

from stacx_core.swe.tasks.contents import tasks_fingerprint
from stacx_core.swe.tasks.reading import read_task, read_tasks
from stacx_core.swe.tasks.task import Limits, Task

__all__ = ["Limits", "Task", "read_task", "read_tasks", "tasks_fingerprint"]
