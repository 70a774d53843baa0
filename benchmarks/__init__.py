"""Studies of ``pyro_opu``; see README.md."""
