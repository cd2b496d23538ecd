"""Drafts made from the target itself: recipes, candidates, measuring them, and the search for the best.

Imports: decode, models, llama, planning, lengths, generation, bench.
Called by: commands.
"""
