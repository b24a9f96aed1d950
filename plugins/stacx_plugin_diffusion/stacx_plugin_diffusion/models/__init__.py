"""Denoisers behind one interface: sigma 1 is noise, velocity is noise minus data."""

from stacx_plugin_diffusion.models.flow_model import SETTINGS_FILE, FlowModel, FlowSettings
from stacx_plugin_diffusion.models.loading import inputs_of, load_flow_model
from stacx_plugin_diffusion.models.lora import LORA_TARGETS, adapter_off, add_lora, has_lora, lora_rank, merged_state

__all__ = [
    "LORA_TARGETS",
    "SETTINGS_FILE",
    "FlowModel",
    "FlowSettings",
    "adapter_off",
    "add_lora",
    "has_lora",
    "inputs_of",
    "load_flow_model",
    "lora_rank",
    "merged_state",
]
