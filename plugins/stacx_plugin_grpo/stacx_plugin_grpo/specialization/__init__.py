"""What the roles of the family do with their model's output."""

from stacx_plugin_grpo.specialization.actor import ActorSpecialization, CispoActor, GspoActor, ReinforceBaselineActor
from stacx_plugin_grpo.specialization.critic import CriticSpecialization

__all__ = ["ActorSpecialization", "CispoActor", "CriticSpecialization", "GspoActor", "ReinforceBaselineActor"]
