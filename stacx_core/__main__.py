"""`python -m stacx_core` is the `stacx` command."""

from __future__ import annotations

import sys

from stacx_core.cli import main

sys.exit(main())
