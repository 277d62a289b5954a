"""Values and gradients of operators beside PyTorch's, special values too.

Runs cases.lua with luajit, in the environment of the specs (spec/torch_spec.lua starts it). Leaves with
77, and says why, where torch cannot be imported.
"""
import json
import math
import os
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TARGETS = torch.tensor([0, 2, 1])
OPS = {
    "neg": lambda x: -x,
    "scale": lambda x: x * -1.5,
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "square": lambda x: x ** 2,
    "root": lambda x: x ** 0.5,
    "matmul": torch.matmul, "linear": F.linear,
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "mse_loss": F.mse_loss,
    "cross_entropy": lambda x: F.cross_entropy(x, TARGETS),
    "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    "sum": torch.sum, "mean": torch.mean,
}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "bf16": 2e-2}
# Gelu and its slope have limits at the ends of the range; the formulas PyTorch computes have NaN there.
HAS_LIMITS = {"gelu", "gelu_tanh"}
LARGE = 1e38


def differs(got, want, tolerance, signed):
    """Is `got` another value than `want`? `signed`: zeros must agree in sign."""
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) != math.isnan(got)
    if math.isinf(want) or math.isinf(got):
        return want != got
    if want == 0 and got == 0:
        return signed and math.copysign(1, want) != math.copysign(1, got)
    return abs(got - want) > tolerance * (abs(want) + 0.1) + 1e-44


def compare(case):
    """Lines that say where a case differs."""
    dtype = DTYPES[case["dtype"]]
    inputs = [torch.tensor([float(v) for v in values], dtype=torch.float64).to(dtype)
              .reshape(shape).requires_grad_(True)
              for values, shape in zip(case["inputs"], case["shapes"])]
    y = OPS.get(case["op"], getattr(torch, case["op"], None))(*inputs)
    y.backward(torch.ones_like(y))
    what = [("y", case["output"], y)]
    what += [(f"grad {i}", case["grads"][i], x.grad) for i, x in enumerate(inputs)]
    for name, got, tensor in what:
        want = tensor.detach().reshape(-1).double().tolist()
        signed = name == "y" or case["op"] != "mse_loss"  # there a gradient of 0 has either
        for i, (g, w) in enumerate(zip((float(v) for v in got), want)):
            at = [values[i] if len(values) == len(got) else "..." for values in case["inputs"]]
            if case["op"] in HAS_LIMITS and abs(float(at[0])) > LARGE:
                continue
            if differs(g, w, TOLERANCE[case["dtype"]], signed):
                yield f"{case['op']} {case['dtype']} {name}[{i}] is {g}, torch has {w} (operands {at})"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    cases = subprocess.run(["luajit", os.path.join(here, "cases.lua")], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    lines = [line for case in cases for line in compare(json.loads(case))]
    print("\n".join(lines[:40]))
    print(f"{len(cases)} cases against torch {torch.__version__}, {len(lines)} values differ")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
