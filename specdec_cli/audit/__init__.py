"""`specdec audit`: texts compared with plain decoding, draws with the target's distributions.

Imports: decode, drafters, generation, bench.
Called by: commands.
"""
