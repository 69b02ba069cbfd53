"""linear_cross_entropy in chunks, with torch's products and one Triton kernel on the logits of each."""

from __future__ import annotations

from typing import Any

import torch

from liger_kernels_loss._chunked import BACKENDS, Backend
from liger_kernels_loss._distilled import linear_jsd_chunked, linear_kl_chunked
from liger_kernels_loss._labels_chunked import linear_cross_entropy_chunked
from liger_kernels_loss._pairs_triton import launch_pairs
from liger_kernels_loss._result import CrossEntropyOutput
from liger_kernels_loss._scale_triton import launch_scale
from liger_kernels_loss._soft_triton import launch_rows
from liger_kernels_loss._topk import linear_topk_kl_chunked
from liger_kernels_loss.linear_logits_stats import LogitsStats, logits_stats_chunked
from liger_kernels_loss.linear_token_logprobs import TokenLogprobs, token_logprobs_chunked

BACKENDS["triton"] = Backend(launch_rows, launch_scale, pair=launch_pairs)


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
