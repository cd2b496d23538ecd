"""How long the next draft should be: costs of passes, chances of acceptance, and what follows from both.

`auto` keeps the books of `-k auto`, `policy` decides, `speedup_model` has the arithmetic for all who predict a speed.

Imports: decode, planning.
Called by: forecast, generation, bench, make_draft, doctor, commands.
"""
