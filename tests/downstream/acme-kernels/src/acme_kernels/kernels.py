"""What "acme" does instead of the reference."""

import torch


class RMSNorm(torch.autograd.Function):
    """Row by row; a kernel of a real device would be launched in both directions."""

    @staticmethod
    def forward(ctx, x, weight, eps, offset):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.offset = offset
        return x * rstd if weight is None else x * rstd * (weight + offset)

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors
        h = x * rstd
        dh = dy if weight is None else dy * (weight + ctx.offset)
        dx = rstd * (dh - h * (dh * h).mean(-1, keepdim=True))
        dw = None if weight is None else (dy * h).reshape(-1, x.shape[-1]).sum(0)
        return dx, dw, None, None


def rms_norm(x, weight, *, eps, cast, offset):
    return RMSNorm.apply(x, weight, eps, offset)
