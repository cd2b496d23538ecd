"""What drafting is worth on this machine: measuring, predicting, comparing, and the reports of it.

The one door to matplotlib (plot). Imports generation, lengths, planning and presets. Called by audit,
make_draft and the commands.
"""
