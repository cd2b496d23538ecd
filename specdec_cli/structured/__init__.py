"""Structured output: JSON Schema, regular expressions and Lark grammars, compiled to token masks.

The one door to llguidance. Knows tokenizers as plain values, no models. `generation` makes the masks part of a run's
law; `commands` reads the files.

Imports: decode.
Called by: planning, generation, library, serve, commands.
"""
