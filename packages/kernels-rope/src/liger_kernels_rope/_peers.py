"""Other libraries' rotary embeddings, for benchmarks."""

from __future__ import annotations

import torch

from liger.bench import peer


@peer("liger_kernel", overwrites=True)  # it rotates in place
def liger_rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """liger-kernel 0.8.5; it takes the halves of cos and sin to be equal."""
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    return liger_rotary_pos_emb(q, k, cos, sin)  # type: ignore[no-any-return]
