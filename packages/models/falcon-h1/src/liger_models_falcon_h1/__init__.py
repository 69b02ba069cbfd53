"""Liger for Falcon-H1 models."""
