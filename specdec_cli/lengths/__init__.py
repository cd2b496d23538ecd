"""How long the next draft should be: costs of passes, chances of acceptance, and what follows from both.

Imports decode, drafters, planning and llama's device names. Called by generation, bench and make_draft.
"""
