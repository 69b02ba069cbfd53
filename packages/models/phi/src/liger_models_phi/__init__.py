"""Liger for Phi models."""
