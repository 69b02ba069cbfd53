"""Liger for gpt-oss models."""
