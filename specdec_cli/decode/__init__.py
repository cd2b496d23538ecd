"""The loop of speculative decoding, the rules of verification, sampling, and what is counted.

Pure: knows neither llama.cpp nor the terminal; models, noise and clocks are arguments.

Imports: no room.
Called by: drafters, llama, structured, advice, presets, planning, lengths, ui, generation, bench, audit, make_draft,
library, serve, commands, __init__.
"""
