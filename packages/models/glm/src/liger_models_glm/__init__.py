"""Liger for GLM 4, GLM 4.5 and later models, and those that see."""
