"""Liger for OLMo models."""
