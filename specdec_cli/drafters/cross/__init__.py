"""Drafts from a model with another vocabulary."""
