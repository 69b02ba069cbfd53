"""Liger for Gemma, Gemma 2, 3 and 4, VaultGemma and PaliGemma models."""
