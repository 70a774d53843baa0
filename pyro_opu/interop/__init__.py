"""Students, teachers and runs of samplers in ArviZ's terms."""

from pyro_opu.interop.arviz import to_inference_data

__all__ = ["to_inference_data"]
