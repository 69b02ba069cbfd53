"""Liger for Mistral, Mistral 3, Ministral and Mixtral models."""
