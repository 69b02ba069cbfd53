"""What several losses declare alike."""

from collections.abc import Mapping

from liger import Needs, Option

LOSS: Mapping[str, Option] = {
    "ignore_index": Option(default=-100, values=(0,)),
    "reduction": Option(default="mean", values=("sum", "none")),
    "label_smoothing": Option(default=0.0, values=(0.1,)),
    "softcap": Option(default=None, values=(5.0,)),
    "logit_scale": Option(default=1.0, values=(0.5,)),
    "temperature": Option(default=1.0, values=(2.0,)),
    "z_loss": Option(default=0.0, values=(0.01,)),
    "num_items": Option(default=None, values=(7,)),
    "returns": Option(default=(), values=(("token_loss", "entropy", "z_loss"),)),
    "check_labels": Option(default=False, values=(True,), silent=True, waits=True),
}

# Of Llama 3, Llama 2, Qwen 3 and Gemma 3, and two with one token added, as users do: rows that are not aligned.
VOCABULARIES = (128256, 32000, 151936, 262144, 128257, 262145)
VARIANTS = ("ignored rows", "all ignored", "class weights", "token weights", "probabilities")
TRITON = Needs(devices=("cuda", "xpu"), dtypes=("float32", "float16", "bfloat16"), interpreter=True)

ROWS = "one row of logits, read once for the statistics and again for the gradient; N programs, or N * parts"
SOFT = "the same for a target of probabilities, read beside the logits"
DLOGITS = "p * ((1 - s) * w_y + s / V * sum(w) + 2 * z_loss * lse) - s / V * w - [c = y] * (1 - s) * w_y"
STATISTICS = (
    "logits are transformed in float32; the largest one is kept apart from the sum of exponentials",
    "lse - z_y as (top - z_y) + log(total), so that a log-prob is never above 0",
)
SCALE = "4096 elements of a gradient after another, none if dy is 1; at most 4 programs a multiprocessor"
