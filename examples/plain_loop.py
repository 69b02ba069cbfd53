"""A loop of your own: `python examples/plain_loop.py [checkpoint]`."""

from __future__ import annotations

import sys

import torch
from text import model, rows

import liger

STEPS, ROWS = 8, 8


def main(checkpoint: str | None = None) -> list[float]:
    """Train, and return the loss of each step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = model(checkpoint).to(device).train()
    report = liger.autopatch(net)  # before DDP, FSDP, torch.compile and the optimizer
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    data, losses = rows(STEPS * ROWS), []
    for step in range(STEPS):
        batch = torch.stack([row["input_ids"] for row in data[step * ROWS : (step + 1) * ROWS]]).to(device)
        loss = net(input_ids=batch, labels=batch).loss  # the logits are not kept: out.logits is None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
    print(report)  # after the first step it names the kernels that served
    liger.unpatch(net)  # before it is saved or handed on, if you like: state_dict is the same with and without
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
