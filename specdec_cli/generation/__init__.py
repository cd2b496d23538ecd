"""An open pair and what is asked of it: opening, chat templates, prompts, answers, traces, prompt caches.

Imports: decode, models, drafters, llama, structured, planning, lengths, ui.
Called by: bench, audit, make_draft, doctor, library, serve, commands.
"""
