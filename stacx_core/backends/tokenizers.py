"""Comparing tokenizers of models that are to read the same token ids."""

from __future__ import annotations

from stacx_core.backends.model import load_tokenizer
from stacx_core.errors import ConfigError


def check_same_tokens(flag: str, checkpoint: str, policy: str, purpose: str) -> None:
    """Make sure that every id of the policy's tokenizer is the same token in another checkpoint's.

    Args:
        flag: What names the other checkpoint.
        checkpoint: The other checkpoint.
        policy: The policy's.
        purpose: What the other one does with the policy's ids, for the message.

    Raises:
        ConfigError: Naming the first id that differs.
        ModelError: A tokenizer cannot be read.
    """
    theirs = {index: token for token, index in load_tokenizer(checkpoint).get_vocab().items()}
    for token, index in sorted(load_tokenizer(policy).get_vocab().items(), key=lambda item: item[1]):
        if theirs.get(index) != token:
            raise ConfigError(
                f"{flag} {checkpoint!r} has another tokenizer than the policy: id {index} is "
                f"{theirs.get(index)!r} there and {token!r} here; {purpose}"
            )
