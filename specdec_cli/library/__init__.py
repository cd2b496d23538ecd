"""The Python interface: a pair opened from a program, its answers as they are written, drafters of one's own.

`import specdec_cli` offers what is here under short names, and loads it when it is first used.

Imports: decode, llama, structured, presets, planning, hub, generation.
Called by: __init__.
"""
