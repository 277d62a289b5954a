"""PyTorch's side of every row: `python3 bench/torch_rows.py ROW key=value ...` answers to the words
of rows.lua with one line of JSON. One thread per process, each process on a core of its own, gloo.
"""

import json
import os
import random
import re
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        packed = self.qkv(self.ln_1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """As lua/moonshard/models/gpt.lua: learned positions, head tied to the token table."""

    def __init__(self, o):
        super().__init__()
        self.wte = nn.Embedding(o["vocab"], o["width"])
        self.wpe = nn.Embedding(o["context"], o["width"])
        self.h = nn.ModuleList(Block(o["width"], o["heads"]) for _ in range(o["layers"]))
        self.ln_f = nn.LayerNorm(o["width"])
        self.lm_head = nn.Linear(o["width"], o["vocab"], bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Llama(nn.Module):
    """transformers' model. A loss of logits, as ours: its own loss also casts and shifts them."""

    def __init__(self, o):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=o["vocab"], hidden_size=o["width"], intermediate_size=o["hidden"],
            num_hidden_layers=o["layers"], num_attention_heads=o["heads"],
            max_position_embeddings=2048, eos_token_id=None))

    def forward(self, ids, targets, **options):
        logits = self.model(ids, use_cache=False, **options).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


MODELS = {"gpt": GPT, "llama": Llama}


def blocks(model):
    return model.h if isinstance(model, GPT) else model.model.model.layers


class LoRALinear(nn.Module):
    """As examples/adapters.lua."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x)) * 2


def adapt(model, rank):
    model.requires_grad_(False)
    for block in model.h:
        for name in ("qkv", "proj", "fc", "out"):
            setattr(block, name, LoRALinear(getattr(block, name), rank))


def peak_rss():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024


def median_call(samples, calls, fn):
    seconds = []
    for _ in range(samples + 1):
        begin = time.perf_counter()
        for _ in range(calls):
            fn()
        seconds.append((time.perf_counter() - begin) / calls)
    return statistics.median(seconds[1:])


def sharded(model, o):
    """NO_SHARD is DDP, for bf16 with autocast and f32 gradients; else FSDP2, a group per block."""
    bf16 = o["dtype"] == "bf16"
    if o.get("strategy") == "NO_SHARD":
        wrapped = DistributedDataParallel(model)

        def forward(x, y):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                return wrapped(x, y)

        return forward
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32
    )
    mesh = None
    if o.get("strategy") == "HYBRID_SHARD":
        mesh = init_device_mesh("cpu", (o["ranks"] // 2, 2), mesh_dim_names=("replicate", "shard"))
    if o.get("recompute"):
        model.h = nn.ModuleList(map(checkpoint_wrapper, model.h))
    for block in blocks(model):
        fully_shard(block, mp_policy=policy, mesh=mesh)
    fully_shard(model, mp_policy=policy, mesh=mesh)
    return model


def adamw(model, **options):
    """In one pass where this PyTorch has that for the CPU: it is up to 20 % faster in small rows."""
    params = [p for p in model.parameters() if p.requires_grad]
    try:
        return torch.optim.AdamW(params, fused=True, **options)
    except RuntimeError:
        return torch.optim.AdamW(params, **options)


def trainer(o, rank):
    torch.manual_seed(0)
    model = MODELS[o.get("model", "gpt")](o)
    if "lora" in o:
        adapt(model, o["lora"])
    forward = sharded(model, o)
    if o.get("compile"):
        forward = torch.compile(forward)
    micro = o.get("micro", 1)
    opt = adamw(model, lr=3e-4, weight_decay=0.1)
    draw = random.Random(rank + 1)

    def tokens():
        numbers = [draw.randrange(o["vocab"]) for _ in range(o["rows"] * o["context"])]
        return torch.tensor(numbers).view(o["rows"], o["context"])

    x, y = tokens(), tokens()
    options = {}
    if "document" in o:
        positions = torch.arange(o["context"]) % o["document"]
        options["position_ids"] = positions.expand(o["rows"], -1)

    def step():
        for i in range(micro):
            if micro > 1:
                model.set_requires_gradient_sync(i == micro - 1)
            loss = forward(x, y, **options)
            loss.item()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

    return step


def train(o, rank):
    step = trainer(o, rank)
    for _ in range(o["warmup"]):
        step()
    seconds = []
    for _ in range(o["steps"]):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    rss = torch.tensor(float(peak_rss()), dtype=torch.float64)
    dist.all_reduce(rss, dist.ReduceOp.MAX)
    tokens = o["ranks"] * o.get("micro", 1) * o["rows"] * o["context"]
    return {"tokens_per_s": tokens / statistics.median(seconds), "rss_bytes": rss.item()}


def generate(o, rank):
    model = Llama(o).model.eval()
    if o["dtype"] == "bf16":
        model.bfloat16()
    prompts = torch.randint(o["vocab"], (o["rows"], o["context"]))

    def seconds(n):
        def call():
            model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                           min_new_tokens=n, max_new_tokens=n)

        return median_call(3, 1, call)

    first, all_tokens = seconds(1), seconds(o["new"])
    return {"prompt_per_s": o["rows"] * o["context"] / first,
            "tokens_per_s": o["rows"] * (o["new"] - 1) / (all_tokens - first),
            "rss_bytes": peak_rss()}


def first_step(o, rank):
    trainer(o, rank)()
    return {"done": True}


def all_reduce(o, rank):
    result = {}
    for name, size, calls in (("b8", 8, 300), ("kib64", 2**16, 100), ("mib32", 2**25, 3)):
        t = torch.zeros(size // 4)
        dist.barrier()
        result[name] = median_call(9, calls, lambda: dist.all_reduce(t))
    return result


def eager(o, rank):
    a, b = torch.randn(16, requires_grad=True), torch.randn(16)

    def adds():
        for _ in range(100):
            a + b

    op = median_call(15, 100, adds) / 100
    layer, x = nn.Linear(8, 8), torch.randn(8, 8)

    def forward_backward():
        layer(x).sum().backward()
        layer.zero_grad()

    return {"op": op, "linear": median_call(15, 500, forward_backward)}


def tiny_step(o, rank):
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    sgd = o.get("optimizer") == "SGD"
    opt = torch.optim.SGD(model.parameters(), lr=1e-3) if sgd else adamw(model, lr=1e-3)
    x, y = torch.randn(8, 32), torch.randn(8, 32)
    forward = torch.compile(model) if o.get("compile") else model

    def step():
        F.mse_loss(forward(x), y).backward()
        opt.step()
        opt.zero_grad()

    return {"step": median_call(9, 10, step), "rss_bytes": peak_rss()}


def conv(o, rank):
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1))
    x, g = torch.randn(32, 3, 32, 32), torch.randn(32, 64, 32, 32)

    def forward():
        with torch.no_grad():
            model(x)

    def both():
        model(x).backward(g)
        model.zero_grad()

    return {"forward": median_call(9, 5, forward), "both": median_call(9, 5, both)}


def attention(o, rank):
    x = [torch.randn(8, 8, 512, 64, requires_grad=i < 3) for i in range(4)]
    lengths = 512 - 54 * torch.arange(8)
    shown = (torch.arange(512) < lengths[:, None])[:, None, None]

    def attend():
        return F.scaled_dot_product_attention(*x[:3], attn_mask=shown)

    def forward():
        with torch.no_grad():
            attend()

    def both():
        attend().backward(x[3])
        for t in x[:3]:
            t.grad = None

    return {"forward": median_call(9, 3, forward), "both": median_call(9, 3, both)}


def transformer(o, rank):
    model = nn.Transformer(256, 8, 2, 2, 1024, dropout=0, batch_first=True)
    opt = adamw(model, lr=1e-3)
    src, tgt = torch.randn(16, 64, 256), torch.randn(16, 64, 256)
    hidden = torch.arange(64) >= torch.arange(41, 57)[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(64).isinf()

    def step():
        y = model(src, tgt, tgt_mask=causal, tgt_is_causal=True, src_key_padding_mask=hidden,
                  tgt_key_padding_mask=hidden, memory_key_padding_mask=hidden)
        F.mse_loss(y, tgt).backward()
        opt.step()
        opt.zero_grad()

    return {"step": median_call(9, 2, step)}


def products(o, rank):
    shapes = open(os.path.join(os.path.dirname(__file__), "products.lua")).read()
    of = {"nt": [], "nn_nt": [], "tn_nt": []}
    for m, k, n in re.findall(r"\{ (\d+), (\d+), (\d+) \}", shapes):
        m, k, n = int(m), int(k), int(n)
        a, b, a_t, b_t = (torch.randn(s) for s in ((m, k), (k, n), (k, m), (n, k)))
        forms = {"nt": (a, b_t.t()), "nn": (a, b), "tn": (a_t.t(), b)}
        seconds = {form: [] for form in forms}
        for _ in range(8):
            for form, operands in forms.items():
                begin = time.perf_counter()
                torch.mm(*operands)
                seconds[form].append(time.perf_counter() - begin)
        rate = {f: 2 * m * k * n / statistics.median(s[1:]) for f, s in seconds.items()}
        of["nt"].append(rate["nt"])
        of["nn_nt"].append(rate["nn"] / rate["nt"])
        of["tn_nt"].append(rate["tn"] / rate["nt"])
    return {**{name: statistics.median(values) for name, values in of.items()},
            "nn_worst": min(of["nn_nt"]), "tn_worst": min(of["tn_nt"])}


ROWS = {f.__name__: f for f in (train, generate, first_step, all_reduce, eager, tiny_step, conv,
                                attention, transformer, products)}


def tokenize(o):
    """The same files by the library tokenizers, with a thread on each of the first cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:o["ranks"]])
    import array
    import glob

    import tokenizers

    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    with open(root + "/tests/fixtures/tokens.json", encoding="utf8") as file:
        text = json.dumps(json.load(file)["cases"][o["tokenizer"]]["file"])
    pages = "".join(open(path, encoding="utf8").read() for path in sorted(glob.glob(root + "/docs/*.md")))
    records = "".join(json.dumps({"text": part}, ensure_ascii=False, separators=(",", ":")) + "\n"
                      for part in (pages + "\n\n").split("\n\n")[:-1]).encode()
    n = -(-o["bytes"] // len(records))
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/text.jsonl", "wb") as file:
            for _ in range(n):
                file.write(records)
        begin, tokens = time.perf_counter(), 0
        tok = tokenizers.Tokenizer.from_str(text)
        end = tok.token_to_id("<|end|>")
        with open(folder + "/text.jsonl", encoding="utf8") as file, open(folder + "/out", "wb") as out:
            while lines := file.readlines(2 ** 20):
                texts = [json.loads(line)["text"] for line in lines]
                for e in tok.encode_batch_fast(texts, add_special_tokens=False):
                    array.array("H", e.ids + [end]).tofile(out)
                    tokens += len(e.ids) + 1
        seconds = time.perf_counter() - begin
    return {"bytes_per_s": n * len(records) / seconds, "tokens": tokens}


def run_rank(rank, name, o, rendezvous):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    ranks = o.get("ranks", 1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
    result = ROWS[name](o, rank)
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main():
    o = {}
    for word in sys.argv[2:]:
        key, value = word.split("=", 1)
        o[key] = int(value) if value.lstrip("-").isdigit() else value
    with tempfile.TemporaryDirectory() as folder:
        args = (sys.argv[1], o, os.path.join(folder, "rendezvous"))
        if sys.argv[1] == "tokenize":
            print(json.dumps(tokenize(o)), flush=True)
        elif o.get("ranks", 1) == 1:
            run_rank(0, *args)
        else:
            mp.spawn(run_rank, args, nprocs=o["ranks"])


if __name__ == "__main__":
    main()
