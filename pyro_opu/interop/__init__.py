"""Students, teachers and runs of samplers in ArviZ's terms."""

from pyro_opu.interop.arviz import summary, to_inference_data

__all__ = ["summary", "to_inference_data"]
