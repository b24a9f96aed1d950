"""The recipes of the family, one module each. Importing this package registers every recipe of every module in it."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
