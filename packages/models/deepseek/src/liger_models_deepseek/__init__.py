"""Liger for DeepSeek models."""
