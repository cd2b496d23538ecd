"""An open pair and what is asked of it: opening, chat templates, prompts, answers, traces, prompt caches.

Imports decode, drafters, lengths, llama, models, planning and ui.view. Called by bench, audit, make_draft and the
commands.
"""
