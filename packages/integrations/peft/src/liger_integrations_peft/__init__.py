"""Lets Liger see through PEFT wrappers."""
