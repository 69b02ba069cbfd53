"""Liger for Llama, Llama 4 text, SmolLM 3 and Arcee models."""
