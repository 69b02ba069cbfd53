"""The shared fits, as data: a model plugin names one per upstream class. Imports no torch.

The options describe what upstream does; each fit's ``match`` checks it on the module at hand before anything changes.
"""

from __future__ import annotations

from liger import Fit


def rms_norm(*, cast: str, eps: str = "variance_epsilon", offset: float | None = None) -> Fit:
    """RMSNorm over the last dimension with a weight called ``weight``.

    Args:
        cast: order of casts, as in ``liger.ops.rms_norm``.
        eps: name of the module's epsilon attribute.
        offset: added to the weight; by default 1 for "gemma" and 0 otherwise.
    """
    offset = (1.0 if cast == "gemma" else 0.0) if offset is None else offset
    return Fit(
        id="rms_norm",
        op="rms_norm",
        adapter="liger_hf.layers:rms_norm",
        options={"cast": cast, "eps": eps, "offset": offset},
        sets=("eps", "cast", "offset"),
        match="liger_hf.layers:match_rms_norm",
        probe="liger_hf.layers:probe_hidden",
    )


GATED = {
    "silu": ("silu_mul", None),
    "gelu_pytorch_tanh": ("gelu_mul", "tanh"),
    "gelu": ("gelu_mul", "none"),
}
"""Activation as upstream's configs name it -> op and its ``approximate``."""


def gated_mlp(*, act: str) -> Fit:
    """``down_proj(act(gate_proj(x)) * up_proj(x))``; calls the three submodules, so quantised ones work too.

    Args:
        act: ``"silu"``, ``"gelu_pytorch_tanh"`` or ``"gelu"``; compared with the module's ``act_fn`` bit by bit.
    """
    if act not in GATED:
        raise ValueError(f"gated_mlp: act is {act!r}, expected one of {', '.join(GATED)}")
    op, approximate = GATED[act]
    return Fit(
        id=f"gated_mlp[{act}]",
        op=op,
        adapter="liger_hf.layers:gated_mlp",
        options={} if approximate is None else {"approximate": approximate},
        sets=() if approximate is None else ("approximate",),
        match="liger_hf.layers:match_gated_mlp",
        probe="liger_hf.layers:probe_hidden",
    )


def rope(layout: str = "half", *, function: str = "apply_rotary_pos_emb") -> Fit:
    """The rotary embedding inside an attention module.

    Args:
        layout: how pairs of channels are formed; only ``"half"`` so far.
        function: module-level function that upstream's attention forward calls.
    """
    if layout != "half":
        raise ValueError(f"rope: layout is {layout!r}, expected 'half'")
    return Fit(
        id="rope[half]",
        op="rope",
        adapter="liger_hf.rope:rope",
        options={"function": function},
        sets=("unsqueeze_dim",),
        match="liger_hf.rope:match",
        probe="liger_hf.rope:probe_attention",
    )


def causal_lm_head(*, softcap: str | None = None) -> Fit:
    """Head and loss of a causal LM as one op, without the full logits.

    Args:
        softcap: attribute path on the model of the final logit soft cap, read at each call. What lies between head and
            loss is found by running upstream's forward, and must agree.
    """
    return Fit(
        id="causal_lm_head",
        op="linear_cross_entropy",
        adapter="liger_hf.head:causal_lm",
        options={"softcap_path": softcap},
        sets=("ignore_index", "reduction", "num_items", "logit_scale", "softcap"),
        parts="liger_hf.head:parts",
        probe="liger_hf.head:probe_head",
    )
