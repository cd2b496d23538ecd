"""The one door to the Hugging Face Hub: which file is meant, its headers, its download, and what is on this machine.

Imports models, planning, presets and llama's tokenizer process. Called by the commands.
"""
