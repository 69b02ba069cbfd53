"""Liger for Qwen 2, Qwen 3, Qwen 3-Next and Qwen 3.5 models, and those that see."""
