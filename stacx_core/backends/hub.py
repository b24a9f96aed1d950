"""The Hugging Face hub, when it does not answer."""

from __future__ import annotations

import logging
from functools import cache

from huggingface_hub import constants, get_session, is_offline_mode

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0


@cache
def work_offline_unless_it_answers() -> None:
    """Ask the hub once; without an answer this process uses only the copies on this machine.

    Otherwise Transformers asks six times, with pauses, for each file that it looks for.
    """
    if is_offline_mode():
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_SECONDS)
    except Exception as error:  # which library speaks HTTP, and what it raises, differs between versions
        logger.warning("%s does not answer (%s); using only its copies on this machine", constants.ENDPOINT, error)
        constants.HF_HUB_OFFLINE = True
