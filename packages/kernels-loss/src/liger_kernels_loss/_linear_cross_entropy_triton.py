"""linear_cross_entropy in chunks, with torch's products and one Triton kernel on the logits of each."""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-incomplete-defs=False, warn-unused-ignores=False

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from liger.launch import ceil_div, launch
from liger_kernels_loss._chunked import BACKENDS, Backend
from liger_kernels_loss._distilled import linear_jsd_chunked, linear_kl_chunked
from liger_kernels_loss._labels_chunked import linear_cross_entropy_chunked
from liger_kernels_loss._pairs_triton import launch_pairs
from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss._soft_triton import launch_rows
from liger_kernels_loss._topk import linear_topk_kl_chunked
from liger_kernels_loss.linear_logits_stats import LogitsStats, logits_stats_chunked
from liger_kernels_loss.linear_token_logprobs import TokenLogprobs, token_logprobs_chunked


# -- Kernels -----------------------------------------------------------------------------------------------------------
@triton.jit(do_not_specialize=["n"])
def _scale(
    factor_ptr,  # () fp32
    x_ptr,  # (n,)
    out_ptr,  # (n,) of any dtype; may be x
    n,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (x * tl.load(factor_ptr)).to(out_ptr.dtype.element_ty), mask=at < n)


# -- Launches ----------------------------------------------------------------------------------------------------------
def _launch_scale(x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * factor, multiplied in fp32; torch would round the factor to x's dtype first."""
    block = 4096  # 4 loads of 16 bytes a thread
    launch(_scale, (ceil_div(x.numel(), block),), (factor, x, out), (x.numel(),), num_warps=4, BLOCK=block)


BACKENDS["triton"] = Backend(launch_rows, _launch_scale, pair=launch_pairs)


def linear_cross_entropy_triton(*tensors: Any, **options: Any) -> torch.Tensor | CrossEntropyOutput:
    """See ``liger_kernels_loss.linear_cross_entropy``."""
    return linear_cross_entropy_chunked("triton", *tensors, **options)


def linear_token_logprobs_triton(*tensors: Any, **options: Any) -> TokenLogprobs:
    """See ``liger_kernels_loss.linear_token_logprobs``."""
    return token_logprobs_chunked("triton", *tensors, **options)


def linear_logits_stats_triton(*tensors: Any, **options: Any) -> LogitsStats:
    """See ``liger_kernels_loss.linear_logits_stats``."""
    return logits_stats_chunked("triton", *tensors, **options)


def linear_jsd_triton(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_jsd``."""
    return linear_jsd_chunked("triton", *tensors, **options)


def linear_kl_triton(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_kl``."""
    return linear_kl_chunked("triton", *tensors, **options)


def linear_topk_kl_triton(*tensors: Any, **options: Any) -> torch.Tensor:
    """See ``liger_kernels_loss.linear_topk_kl``."""
    return linear_topk_kl_chunked("triton", *tensors, **options)
