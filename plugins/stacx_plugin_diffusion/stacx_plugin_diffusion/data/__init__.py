"""What flow models are trained on: latents with prompts, prompts alone, and pairs."""

from stacx_plugin_diffusion.data.example import Example, Pair
from stacx_plugin_diffusion.data.examples import Encode, read_examples, read_pairs

__all__ = ["Encode", "Example", "Pair", "read_examples", "read_pairs"]
