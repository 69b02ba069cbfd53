"""Liger for Gemma, Gemma 2, VaultGemma, and Gemma 3 and 4 text models."""
