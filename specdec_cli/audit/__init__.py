"""`specdec audit`: texts compared with plain decoding, draws with the target's distributions.

Imports bench, decode, drafters and generation. Called by the command of the same name.
"""
