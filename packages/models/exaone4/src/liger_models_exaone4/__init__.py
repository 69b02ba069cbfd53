"""Liger for EXAONE 4 models."""
