"""The one door to llama.cpp. Everything outside this folder sees models, sessions and plain values.

Imports: decode, models.
Called by: planning, forecast, hub, generation, bench, make_draft, doctor, library, serve, commands, __init__.
"""
