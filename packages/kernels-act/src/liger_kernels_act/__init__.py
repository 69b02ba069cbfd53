"""Liger kernels: gated activations (SiLU x mul, GELU x mul)."""
