"""Commands that measure ``pyro_opu`` and write what they found to ``benchmarks/results``."""
