"""What a model's file says: GGUF headers, trained heads, memory, tokenizers and whether two of them match.

Reads headers only; imports no other room. Called by planning, hub, llama and the commands.
"""
