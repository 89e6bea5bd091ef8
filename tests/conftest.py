"""Settings for every test."""

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # shared machines are slow at random
settings.load_profile("steady")
