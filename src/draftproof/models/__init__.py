"""Targets and drafters: Hugging Face models made row-invariant, and what proposes tokens for them."""
