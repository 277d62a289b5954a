"""Programs of programs.lua beside PyTorch's.

Each call is compared on the operands it had there: its result, once compared, is put in the place
of PyTorch's, so that rounding does not add up and comparisons fall the same way.
Of other seeds about one program in two thousand differs by right: squares of large reciprocals
overflow in one order and not in the other, slopes cancel to what rounding leaves.
"""
import torch
import torch.nn.functional as F

from values import DTYPES, TOLERANCE, differs, tensor_of


def arithmetic(fn):
    """Of two tensors, or of one and a number, on its left where `left`."""
    def call(x, y=None, number=None, left=False):
        if y is not None:
            return fn(x, y)
        number = torch.tensor(number, dtype=x.dtype)
        return fn(number, x) if left else fn(x, number)
    return call


def linear_gelu(x, w, bias=None, approximate="none"):
    return F.gelu(F.linear(x, w, bias), approximate=approximate)


def layer_norm(x, w=None, bias=None, eps=None):
    return F.layer_norm(x, x.shape[-1:], w, bias, eps)


def wide(x):
    """Losses of bf16 are f32."""
    return x.float() if x.dtype == torch.bfloat16 else x


def attention(q, k, v, causal, scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def attention_packed(qkv, heads, causal):
    b, t, c = qkv.shape
    q, k, v = qkv.reshape(b, t, 3, heads, c // 3 // heads).permute(2, 0, 3, 1, 4)
    return attention(q, k, v, causal).transpose(1, 2).reshape(b, t, c // 3)


OPS = {
    **{name: getattr(torch, name) for name in (
        "exp", "log", "sqrt", "tanh", "relu", "reciprocal", "clone", "where", "matmul", "sum",
        "mean", "reshape", "permute", "transpose", "narrow", "select")},
    **{name: arithmetic(getattr(torch, name)) for name in (
        "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")},
    "affine": lambda x, scale, shift: x * scale + shift,
    "pow": torch.pow,
    "gelu": F.gelu, "linear": F.linear, "linear_gelu": linear_gelu,
    "embedding": lambda table, ids: F.embedding(ids, table),
    "layer_norm": layer_norm, "log_softmax": F.log_softmax,
    "cross_entropy": lambda x, at, reduction: F.cross_entropy(wide(x), at, reduction=reduction),
    "mse_loss": lambda x, y, reduction: F.mse_loss(wide(x), wide(y), reduction=reduction),
    "scaled_dot_product_attention": F.scaled_dot_product_attention,
    "attention": attention, "attention_packed": attention_packed,
    "dropout": lambda x, kept, p: torch.where(kept, x / (1 - p), 0),
    "cat": lambda *list, dim: torch.cat(list, dim),
    "cast": lambda x, dtype: x.to(DTYPES[dtype]),
}
VIEWS = {"reshape", "permute", "transpose", "narrow", "select"}


def first_difference(got, want, tolerance, signed):
    """Where two lists of numbers differ. None: nowhere."""
    scale = tolerance * max((abs(w) for w in want if abs(w) < float("inf")), default=0)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if differs(g, w, tolerance, signed) and not abs(g - w) <= scale:
            return f"[{i}] is {g}, torch has {w}"
    return None


def flat(tensor):
    return tensor.detach().double().reshape(-1).tolist()


def run(program):
    """Tensors of all steps; the lines say where results differ."""
    tensors, lines = [], []
    for place, step in enumerate(program["steps"]):
        ours = tensor_of(step)
        if step["op"] == "leaf":
            tensors.append(ours.requires_grad_(step["differentiated"]))
            continue
        y = OPS[step["op"]](*(tensors[k] for k in step["operands"]), **step["given"])
        name = f"step {place} {step['op']} {step['dtype']}"
        if y.dtype != ours.dtype or y.shape != ours.shape:
            lines.append(f"{name} is {list(ours.shape)}, torch has {y.dtype} {list(y.shape)}")
            break
        found = first_difference(flat(ours), flat(y), TOLERANCE.get(step["dtype"], 0), True)
        if found:
            lines.append(name + found)
        if step["op"] not in VIEWS and y.is_floating_point():
            y.data.copy_(ours)
        tensors.append(y)
    return tensors, lines


def differences(program):
    """Lines that say where a program differs."""
    tensors, lines = run(program)
    if not lines and "weight" in program:
        last = program["steps"][-1]
        tensors[-1].backward(tensor_of({**last, "values": program["weight"]}))
        coarsest = max(TOLERANCE.get(step["dtype"], 0) for step in program["steps"])
        for place, (step, x) in enumerate(zip(program["steps"], tensors)):
            if not step.get("differentiated") or x.numel() == 0:
                continue
            want = [0.0] * x.numel() if x.grad is None else flat(x.grad)
            got = [float(v) for v in step.get("gradient", [0.0] * x.numel())]
            found = first_difference(got, want, 4 * coarsest, False)
            if found:
                lines.append(f"gradient of step {place}{found}")
    calls = ", ".join(step["op"] for step in program["steps"])
    again = f"MS_SEED={program['number']} MS_PROGRAMS=1"
    return [f"program {again} ({calls}): {line}" for line in lines]
