"""Named pairs: their YAML, models derived from packaged files, and from what the user typed to model files.

The one door to yaml.

Imports: decode, models, drafters.
Called by: planning, hub, bench, doctor, library, commands.
"""
