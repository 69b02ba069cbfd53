"""Liger for Llama, Llama 3.2 Vision, Llama 4 text, SmolLM 3 and Arcee models."""
