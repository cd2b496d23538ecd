"""Medusa heads: their files, what they compute, and the drafter that asks them (Cai et al., arXiv 2401.10774)."""
