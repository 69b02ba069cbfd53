"""Liger for LFM2 models."""
