"""Liger kernels: rotary position embedding."""
