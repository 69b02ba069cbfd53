"""Liger for GLM models."""
