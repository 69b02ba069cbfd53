"""Liger for ERNIE 4.5 models."""
