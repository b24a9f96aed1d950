"""Specializations: what a role does with its model's output."""

from stacx_core.specialization.base import Specialization
from stacx_core.specialization.causal_decoder import CausalDecoderSpecialization
from stacx_core.specialization.scalar_head import ScalarHeadSpecialization

__all__ = ["CausalDecoderSpecialization", "ScalarHeadSpecialization", "Specialization"]
