"""Named pairs: their YAML, models derived from packaged files, and from what the user typed to model files.

The one door to yaml. Imports decode's sampler settings. Called by hub and the commands.
"""
