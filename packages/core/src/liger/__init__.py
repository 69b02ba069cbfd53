"""Liger: fused GPU kernels for Hugging Face models, applied and undone automatically."""
