"""Speculative decoding for GGUF models: faster text, the same text."""

__version__ = "0.1.0"
