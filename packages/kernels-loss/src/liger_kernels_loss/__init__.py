"""Liger kernels: cross-entropy and fused linear cross-entropy."""
