"""How fast a pair would be on this machine, from its headers alone: passes of a few layers of made-up weights, scaled.

Imports: models, llama, planning, lengths.
Called by: commands.
"""
