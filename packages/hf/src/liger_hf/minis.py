"""What the small models of the packages share: batches with images, for ``ModelPatch.images``."""

from __future__ import annotations

import torch
from torch import Tensor

IMAGE = 251
"""The token that stands for a part of an image; vocabularies of minis have 256."""


def with_image(ids: Tensor, *shape: int, first: int = 3, tokens: int = 4) -> dict[str, Tensor]:
    """Token ids (B, T) with an image in each row.

    Args:
        ids: the text, which is not changed.
        shape: of one image's pixels, without the batch.
        first: column of the first image token.
        tokens: how many there are.
    """
    ids = ids.clone()
    ids[:, first : first + tokens] = IMAGE
    return {"input_ids": ids, "pixel_values": _noise(len(ids), *shape)}


def pixels_8(ids: Tensor) -> dict[str, Tensor]:
    """An image of four patches of 4 x 4 pixels in each row: four tokens."""
    return with_image(ids, 3, 8, 8)


def pixels_16(ids: Tensor) -> dict[str, Tensor]:
    """An image of 16 patches of 4 x 4 pixels in each row: four tokens."""
    return with_image(ids, 3, 16, 16)


def rows_of_patches(ids: Tensor) -> dict[str, Tensor]:
    """The same as Qwen and GLM take it: all patches in a row, and a start (253) and an end (254) around the tokens."""
    inputs = with_image(ids, 16, 3 * 2 * 4 * 4)
    found = inputs["input_ids"]
    found[:, 2], found[:, 7] = 253, 254
    return {
        **inputs,
        "pixel_values": inputs["pixel_values"].flatten(0, 1),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * len(ids)),
        "mm_token_type_ids": (found == IMAGE).int(),
    }


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
