"""Liger for SmolVLM and Idefics 3 models."""
