"""Samples of given latents: `flow_sft`, and pairs for `flow_dpo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stacx_core import Args, ConfigError, DataError, ModelError, Rollout, Sample
from stacx_plugin_diffusion.data import Example, Pair, read_examples, read_pairs
from stacx_plugin_diffusion.engine import FlowEngine
from stacx_plugin_diffusion.objectives import SigmaDensity, rwr_weights
from stacx_plugin_diffusion.roll_ins.base import FlowRollIn, check_conditions, conditions_of, noised, sample_of


def density_of(args: Args) -> SigmaDensity:
    """How the run draws noise levels.

    Raises:
        ConfigError: A parameter does not fit the density.
    """
    try:
        return SigmaDensity(
            args.sigma_density,
            args.density_mean,
            args.density_std,
            args.density_scale,
            args.density_alpha,
            args.density_beta,
            args.sigma_shift,
            args.sigma_min,
            args.sigma_max,
        )
    except ValueError as error:
        raise ConfigError(f"--sigma-density {args.sigma_density}: {error}") from error


class DataRollIn(FlowRollIn):
    """Latents of a data set, each with noise at ``--sigma-draws`` levels; some without their prompt."""

    def __init__(self, args: Args) -> None:
        self.density = density_of(args)
        self.held: list[Example] = read_examples(args.eval_data) if args.eval_data is not None else []
        self._held_samples: list[Sample] = []
        super().__init__(args)

    def attach(self, engine: FlowEngine) -> None:
        """See the base class: encode all pictures."""
        self.rows = _encoded(self.args.prompt_data, engine)
        if self.args.prompt_dropout:
            try:
                engine.model.prompts.check([""])
            except ModelError as error:
                raise ModelError(error.message, *error.hints, "or leave no prompt out: --prompt-dropout 0") from error
        if self.held:
            held = _encoded(self.args.eval_data, engine)[: self.args.eval_limit]
            self._held_samples = self._samples("held", 0, held, engine, dropout=0.0)

    def held_out(self) -> list[Sample]:
        """The samples of ``--eval-data``, always with the same noise."""
        return self._held_samples

    def samples(self, rollout: int, rows: Sequence[Example], engine: FlowEngine) -> Rollout:
        """See the base class."""
        return Rollout(self._samples("noise", rollout, rows, engine, self.args.prompt_dropout), {})

    def _samples(
        self, stream: str, rollout: int, rows: Sequence[Example], engine: FlowEngine, dropout: float
    ) -> list[Sample]:
        conditions, weights = conditions_of(rows, engine), self._weights(rows)
        made = []
        for index, (row, condition, weight) in enumerate(zip(rows, conditions, weights, strict=True)):
            generator = self.generator(stream, rollout, index)
            sigmas = self.density.sample(self.args.sigma_draws, generator)
            assert row.latent is not None
            noise = torch.randn(len(sigmas), *row.latent.shape, generator=generator)
            if float(torch.rand((), generator=generator)) < dropout:
                (condition,) = engine.encode([""])
            inputs: dict[str, Any] = {**noised(row.latent, sigmas, noise), "conditions": condition}
            inputs["example_weights"] = torch.full((len(sigmas),), weight)
            made.append(sample_of(index, index, row.prompt, inputs, version=rollout))
        return made

    def _weights(self, rows: Sequence[Example]) -> list[float]:
        given = [1.0 if row.weight is None else row.weight for row in rows]
        if self.args.rwr_temperature is None:
            return given
        return [float(weight) for weight in rwr_weights(torch.tensor(given), self.args.rwr_temperature)]


def _encoded(source: str, engine: FlowEngine) -> list[Example]:
    """The rows with latents, of which the network can read each, as it can the prompts."""
    model = engine.model
    rows = read_examples(source, model.encode_media, model.media_channels)
    _check_latent(rows[0].latent, rows[0].where, engine)
    check_conditions(rows, engine)
    return rows


def _check_latent(latent: Tensor | None, where: str, engine: FlowEngine) -> None:
    """Refuse a latent that the network does not take.

    Raises:
        DataError: Naming its shape, and what is wrong with it.
    """
    assert latent is not None
    found, scale = list(latent.shape), engine.model.codec.downscale
    channels = engine.model.latent_channels(engine.model.config)
    if len(found) != 3 or found[0] != channels:
        raise DataError(f"{where}: a latent of shape {found}, where the network takes [{channels}, H, W]")
    try:
        engine.model.latent_shape(scale * found[1], scale * found[2])
    except ConfigError as error:
        raise DataError(f"{where}: a latent of shape {found} does not fit the network: {error}") from error


class PairRollIn(FlowRollIn):
    """Pairs of a data set, both sides with the same noise at ``--pair-draws`` levels."""

    def read(self, source: str) -> Sequence[Any]:
        """See the base class."""
        return read_examples(source) if self.args.online_pairs else read_pairs(source, lambda media: media)

    def attach(self, engine: FlowEngine) -> None:
        """See the base class: encode all pictures."""
        model = engine.model
        self.rows = read_pairs(self.args.prompt_data, model.encode_media, model.media_channels)
        _check_latent(self.rows[0].chosen, self.rows[0].where, engine)
        model.prompts.check([row.prompt for row in self.rows])

    def samples(self, rollout: int, rows: Sequence[Pair], engine: FlowEngine) -> Rollout:
        """See the base class."""
        made = PairMaker(self, rollout)
        for row, condition in zip(rows, engine.encode([row.prompt for row in rows]), strict=True):
            made.add(row.prompt, row.chosen, row.rejected, condition)
        return Rollout(made.samples, {})


class PairMaker:
    """Makes the two samples of each pair.

    Args:
        roll_in: Whose settings and random numbers are used.
        rollout: Number of the rollout.
    """

    def __init__(self, roll_in: FlowRollIn, rollout: int) -> None:
        self.roll_in, self.rollout = roll_in, rollout
        self.density = density_of(roll_in.args)
        self.samples: list[Sample] = []

    def add(self, prompt: str, chosen: Any, rejected: Any, condition: Any) -> None:
        """Add a pair of latents ``[*D]``."""
        pair = len(self.samples) // 2
        generator = self.roll_in.generator("pair", self.rollout, pair)
        sigmas = self.density.sample(self.roll_in.args.pair_draws, generator)
        noise = torch.randn(len(sigmas), *chosen.shape, generator=generator)
        for latent, is_chosen in ((chosen, True), (rejected, False)):
            inputs: dict[str, Any] = {**noised(latent, sigmas, noise), "conditions": condition}
            self.samples.append(
                sample_of(
                    len(self.samples),
                    pair,
                    prompt,
                    inputs,
                    version=self.rollout,
                    rollout_id=pair,
                    pair_id=pair,
                    is_chosen=is_chosen,
                )
            )
