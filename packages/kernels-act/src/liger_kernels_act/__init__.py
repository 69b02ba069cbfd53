"""Liger kernels: activations (gated, squared ReLU, softmax, sparsemax)."""
