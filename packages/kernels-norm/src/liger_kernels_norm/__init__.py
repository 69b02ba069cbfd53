"""Liger kernels: RMSNorm, LayerNorm and other norms."""
