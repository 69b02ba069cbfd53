"""Liger for Seed-OSS models."""
