"""Liger for LLaVA models."""
