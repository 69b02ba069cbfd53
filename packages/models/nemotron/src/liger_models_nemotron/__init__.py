"""Liger for Nemotron models."""
