"""Programs of Pyro's tutorials and examples, as their users write them: a table, and its judge.

Each is rewritten from its description, with the signature, arguments and plates of the original, on
small synthetic data, and inferred as there, briefly. ``programs.judged.measured(title)`` distils
one with the defaults and says what became of it.
"""
