"""Liger kernels: RMSNorm."""
