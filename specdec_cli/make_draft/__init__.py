"""Drafts made from the target itself: recipes, candidates, measuring them, and the search for the best.

Imports bench, generation, lengths, llama, models and planning. Called by `specdec draft`.
"""
