"""Liger for Cohere models."""
