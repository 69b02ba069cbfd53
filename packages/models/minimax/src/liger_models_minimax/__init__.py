"""Liger for MiniMax models."""
