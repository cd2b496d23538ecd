"""The one door to the Hugging Face Hub: which file is meant, its headers, its download, and what is on this machine.

Imports: models, llama, presets, planning.
Called by: doctor, library, commands.
"""
