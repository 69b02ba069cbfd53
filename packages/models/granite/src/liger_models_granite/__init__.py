"""Liger for Granite models."""
