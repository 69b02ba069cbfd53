"""Liger for Llama models."""
