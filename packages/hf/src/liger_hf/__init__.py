"""What all Hugging Face models share: the head seam, fits and adapters."""
