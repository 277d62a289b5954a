"""PyTorch's side of run.sh's training rows: `python3 torch_train.py MODE key=value ...`, MODE being
eager, compile, fsdp2, peak or attention; fsdp2 also in ranks of torchrun. As bench/torch_rows.py's train, on a GPU, in bf16 with f32 masters."""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))
import torch_rows  # noqa: E402

WORLD, LOCAL_RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
RANK = int(os.environ.get("RANK", 0))
SIDE = 8192  # of the products that measure the peak; random operands, which draw more power


def timed(fn):
    begin = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def peak():
    a, b = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16) for _ in range(2))
    seconds = [timed(lambda: a @ b) for _ in range(20)]
    return {"flops": 2 * SIDE**3 / min(seconds)}


def attention(o):
    """As rates.lua's attention."""
    shape = (o["rows"], o["heads"], o["length"], o["width"])
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    g, calls = torch.randn(shape, dtype=torch.bfloat16), 10

    def forward():
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def seconds(fn):
        return min(timed(lambda: [fn() for _ in range(calls)]) for _ in range(6)) / calls

    with torch.no_grad():
        first = seconds(forward)
    both = seconds(lambda: torch.autograd.grad(forward(), (q, k, v), g))
    flops = 2 * o["rows"] * o["heads"] * o["length"] ** 2 * o["width"]
    return {"forward": flops / first, "backward": 2.5 * flops / (both - first)}


def text_batch(o):
    """As the text of bench/rows.lua."""
    id_of = {}
    with open(o["text"], "rb") as file:
        text = [id_of.setdefault(word, len(id_of) % o["vocab"]) for word in file.read().split()]
    n = o["rows"] * o["context"]
    ids = [text[at % (len(text) - 1)] for at in range(RANK * n, (RANK + 1) * n)]
    targets = [text[at % (len(text) - 1) + 1] for at in range(RANK * n, (RANK + 1) * n)]
    return (torch.tensor(t).view(o["rows"], o["context"]) for t in (ids, targets))


def train(mode, o):
    torch.manual_seed(0)
    model = torch_rows.GPT(o)
    if mode == "fsdp2":
        torch.cuda.set_device(LOCAL_RANK)
        if WORLD > 1:
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29533", rank=0, world_size=1)
        policy = torch_rows.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in [*model.h, model]:
            torch_rows.fully_shard(block, mp_policy=policy)
    elif mode == "compile":
        model.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids, targets = text_batch(o)

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=mode != "fsdp2"):
            loss = model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        return loss.item()

    for _ in range(o["warmup"]):
        step()
    seconds = [timed(step) for _ in range(o["steps"])]
    return {
        "tokens_per_s": WORLD * o["rows"] * o["context"] / statistics.median(seconds),
        "device_bytes": torch.cuda.max_memory_reserved(),
    }


def main():
    torch.set_default_device("cuda")
    mode, o = sys.argv[1], {}
    for word in sys.argv[2:]:
        key, value = word.split("=", 1)
        o[key] = int(value) if value.isdigit() else value
    result = peak() if mode == "peak" else attention(o) if mode == "attention" else train(mode, o)
    if LOCAL_RANK == 0:
        print(json.dumps(result))


main()
