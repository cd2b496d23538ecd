"""The loop of speculative decoding, the rules of verification, sampling, and what is counted.

Pure: imports no other room, and neither llama.cpp nor the terminal; models, noise and clocks are arguments.
Called by the drafters and by whoever holds an open pair.
"""
