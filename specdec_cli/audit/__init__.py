"""The promise held against this machine's own files: texts against plain decoding, draws against distributions.

Imports bench, decode, drafters and generation. Called by the command of the same name.
"""
