"""What drafting is worth on this machine: measuring, predicting, comparing, and the reports of it.

The one door to matplotlib (plot).

Imports: decode, drafters, llama, presets, planning, lengths, ui, generation.
Called by: audit, make_draft, doctor, commands.
"""
