"""Liger for Hunyuan v1 models."""
