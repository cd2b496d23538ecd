"""What a model's file says: GGUF headers, trained heads, memory, tokenizers and whether two of them match.

Reads headers only.

Imports: no room.
Called by: drafters, llama, advice, presets, planning, forecast, hub, ui, generation, make_draft, doctor, commands.
"""
