"""What is decided before weights are loaded: the request, who drafts and how long, where layers go, whether it fits.

Imports decode, drafters, llama, models and presets. Called by lengths, generation, hub, bench, make_draft and the
commands.
"""
