"""Liger for InternVL models."""
