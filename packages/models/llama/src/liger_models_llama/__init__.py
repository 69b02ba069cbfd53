"""Liger for Llama, Llama 3.2 Vision, Llama 4, SmolLM 3 and Arcee models."""
