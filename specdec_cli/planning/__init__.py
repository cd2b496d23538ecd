"""What is settled before any weights are read: the request, the machine, where layers go, whether a pair fits.

Imports decode, drafters, llama and models. Called by generation, hub, make_draft and the commands.
"""
