"""The command line: one file for each command, and the options that they share. The only place that knows typer.

Imports: decode, models, drafters, llama, structured, presets, planning, lengths, forecast, hub, ui, generation, bench,
audit, make_draft, export, doctor, serve.
Called by: app.
"""
