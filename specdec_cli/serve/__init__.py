"""An OpenAI-compatible HTTP server over one open pair: protocol, queue and worker, kept prefixes, metrics.

The one door to starlette and uvicorn. `protocol`, `tools` and `shapes` are functions of plain values; `worker` is the
one thread that computes; `app` brings them together.

Imports: decode, drafters, llama, structured, planning, generation.
Called by: commands.
"""
