"""Liger for Mistral, Ministral and Mixtral models."""
