"""What is decided before weights are loaded: the request, who drafts and how long, where layers go, whether it fits.

Imports: decode, models, drafters, llama, structured, presets.
Called by: lengths, forecast, hub, generation, bench, make_draft, doctor, library, serve, commands.
"""
