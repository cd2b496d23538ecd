"""What is wrong here, and what to do about it: small checks of the build, the machine, the Hub and a pair.

Imports: models, llama, presets, planning, lengths, hub, generation, bench.
Called by: commands.
"""
