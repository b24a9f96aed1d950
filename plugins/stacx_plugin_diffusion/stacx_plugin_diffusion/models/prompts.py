"""From a prompt to what the network is conditioned on."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stacx_core import ModelError
from stacx_plugin_diffusion.extras import require
from stacx_plugin_diffusion.models.linking import link_parts

TEXTS_FILE = "prompts.json"
EMBEDS_FILE = "prompts.safetensors"
INDEX_FILE = "model_index.json"
NOT_ENCODERS = ("transformer", "vae")


class PromptEncoder(Protocol):
    """A prompt is ``prompt_embeds [L, E]`` and ``pooled_embeds [P]``, in ordinary memory."""

    def check(self, prompts: Sequence[str]) -> None:
        """Refuse prompts that cannot be encoded, without encoding them.

        Raises:
            ModelError: Names one.
        """

    def encode(self, prompts: Sequence[str]) -> list[dict[str, Tensor]]:
        """The tensors of each prompt; "" is the null prompt."""

    def save(self, folder: Path) -> None:
        """Write what is needed to load it again."""


class PromptTable:
    """Prompts whose embeddings are known beforehand.

    Args:
        prompts: N different texts; "" is needed for guidance without a classifier.
        embeds: ``[N, L, E]``.
        pooled: ``[N, P]``.
        where: For messages.

    Raises:
        ModelError: A prompt twice, another number of embeddings, other shapes, or a value that is not finite.
    """

    def __init__(self, prompts: Sequence[str], embeds: Tensor, pooled: Tensor, where: str = "the prompt table") -> None:
        self.rows = {prompt: row for row, prompt in enumerate(prompts)}
        self.embeds, self.pooled, self.where = embeds, pooled, where
        if len(self.rows) != len(prompts):
            twice = next(prompt for prompt in prompts if list(prompts).count(prompt) > 1)
            raise ModelError(f"{where}: {twice!r} is there more than once")
        for name, tensor, axes in (("prompt_embeds", embeds, 3), ("pooled_embeds", pooled, 2)):
            if tensor.ndim != axes or len(tensor) != len(prompts):
                raise ModelError(
                    f"{where}: {name!r} has shape {list(tensor.shape)}; "
                    f"{len(prompts)} prompts need {[len(prompts), 'L', 'E'][:axes]}"
                )
            if not torch.isfinite(tensor).all():
                raise ModelError(f"{where}: {name!r} holds NaN or infinity")

    @classmethod
    def read(cls, folder: Path) -> PromptTable:
        """The table of a checkpoint's folder.

        Raises:
            ModelError: A file is absent or damaged, or they do not fit each other.
        """
        try:
            prompts = json.loads((folder / TEXTS_FILE).read_text(encoding="utf-8"))
            tensors = load_file(folder / EMBEDS_FILE)
            embeds, pooled = tensors["prompt_embeds"], tensors["pooled_embeds"]
        except KeyError as error:
            raise ModelError(f"{folder / EMBEDS_FILE} has no tensor {error}") from error
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(f"no usable prompt table in {str(folder)!r}: {error}") from error
        if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
            raise ModelError(f"{folder / TEXTS_FILE} is no list of texts")
        return cls(prompts, embeds, pooled, str(folder / TEXTS_FILE))

    def check(self, prompts: Sequence[str]) -> None:
        """See the protocol; names near ones."""
        for prompt in prompts:
            if prompt not in self.rows:
                raise self._unknown(prompt)

    def encode(self, prompts: Sequence[str]) -> list[dict[str, Tensor]]:
        """The rows of the prompts.

        Raises:
            ModelError: One is not in the table.
        """
        self.check(prompts)
        rows = [self.rows[prompt] for prompt in prompts]
        return [{"prompt_embeds": self.embeds[row], "pooled_embeds": self.pooled[row]} for row in rows]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEXTS_FILE).write_text(json.dumps(list(self.rows), indent=0) + "\n", encoding="utf-8")
        save_file({"prompt_embeds": self.embeds, "pooled_embeds": self.pooled}, folder / EMBEDS_FILE)

    def _unknown(self, prompt: str) -> ModelError:
        if not prompt:
            return ModelError(f'{self.where} has no null prompt "", which guidance needs', "add it, or train without")
        near = difflib.get_close_matches(prompt, self.rows, n=3)
        listed = ", ".join(repr(text) for text in near or list(self.rows)[:5])
        kind = "near ones" if near else f"{len(self.rows)} others"
        return ModelError(f"{self.where} has no prompt {prompt!r}, but {kind}: {listed}")


class PipelinePrompts:
    """The text encoders and tokenizers of a diffusers pipeline, loaded when they are first asked.

    Args:
        folder: Of the pipeline.
        network: Its denoiser, whose widths the pipeline looks up.
        dtype: Of the text encoders.
        device: Where they compute.

    Raises:
        ModelError: The folder's index cannot be read.
    """

    def __init__(self, folder: Path, network: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self.folder, self.network, self.dtype, self.device = folder, network, dtype, device
        try:
            self.index = dict(json.loads((folder / INDEX_FILE).read_text(encoding="utf-8")))
            self.kind = str(self.index["_class_name"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{folder / INDEX_FILE} is no index of a pipeline: {error}") from error
        self._pipeline: Any = None

    def check(self, prompts: Sequence[str]) -> None:
        """Any text can be encoded."""

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> list[dict[str, Tensor]]:
        if not prompts:
            return []
        texts = list(prompts)
        if self.kind == "FluxPipeline":
            embeds, pooled, _ = self._loaded().encode_prompt(texts, None, device=self.device)
        else:
            embeds, _, pooled, _ = self._loaded().encode_prompt(
                texts, None, None, device=self.device, do_classifier_free_guidance=False
            )
        rows = zip(embeds.cpu(), pooled.cpu(), strict=True)
        return [{"prompt_embeds": embed, "pooled_embeds": pool} for embed, pool in rows]

    def save(self, folder: Path) -> None:
        parts = [name for name in self.index if not name.startswith("_") and name not in NOT_ENCODERS]
        link_parts(self.folder, folder, [INDEX_FILE, *parts])

    def _loaded(self) -> Any:
        if self._pipeline is None:
            diffusers = require("diffusers", "diffusers", f"the prompt encoder of a {self.kind}", ModelError)
            if self.kind not in ("FluxPipeline", "StableDiffusion3Pipeline"):
                raise ModelError(
                    f"{self.folder / INDEX_FILE}: no way to encode prompts for {self.kind!r}",
                    "known: FluxPipeline, StableDiffusion3Pipeline; or give the prompts as a table of embeddings",
                )
            # A part the pipeline goes without, as SD3 may without its T5, must be named when it is loaded.
            absent = {name: None for name, part in self.index.items() if part == [None, None]}
            try:
                pipeline = getattr(diffusers, self.kind).from_pretrained(
                    self.folder, dtype=self.dtype, **{**absent, "transformer": self.network, "vae": None}
                )
            except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
                raise ModelError(f"no usable text encoders in {str(self.folder)!r}: {error}") from error
            for name, part in pipeline.components.items():
                if isinstance(part, nn.Module) and name not in NOT_ENCODERS:
                    part.to(self.device).requires_grad_(False)
            self._pipeline = pipeline
        return self._pipeline


class NoPrompts:
    """Of a checkpoint that brings no prompt encoder, as one that is trained on embeddings need not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def encode(self, prompts: Sequence[str]) -> list[dict[str, Tensor]]:
        """Refuse.

        Raises:
            ModelError: There is a prompt.
        """
        self.check(prompts)
        return []

    def check(self, prompts: Sequence[str]) -> None:
        """See the protocol; refuses every prompt."""
        if not prompts:
            return
        raise ModelError(
            f"{str(self.folder)!r} has no prompt encoder: neither {TEXTS_FILE} nor {INDEX_FILE}",
            f"add the parts of its pipeline, or {TEXTS_FILE} (a list of texts) and {EMBEDS_FILE} "
            "(prompt_embeds [N, L, E] and pooled_embeds [N, P])",
        )

    def save(self, folder: Path) -> None:
        """Nothing is there."""


def load_prompts(folder: Path, network: nn.Module, dtype: torch.dtype, device: torch.device) -> PromptEncoder:
    """The prompt encoder of a checkpoint's folder: a table before the text encoders of a pipeline.

    Raises:
        ModelError: What is there cannot be read.
    """
    if (folder / TEXTS_FILE).exists():
        return PromptTable.read(folder)
    if (folder / INDEX_FILE).exists():
        return PipelinePrompts(folder, network, dtype, device)
    return NoPrompts(folder)
