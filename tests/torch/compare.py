"""Values and gradients of operators beside PyTorch's, special values too.

Runs cases.lua and programs.lua with luajit, in the environment of the specs (spec/torch_spec.lua
starts it). Leaves with 77, and says why, where torch cannot be imported.
"""
import json
import os
import subprocess
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.dont_write_bytecode = True  # nothing is left in the tree

from programs import differences
from values import TOLERANCE, differs, tensor_of

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
# Gelu and its slope have limits at the ends of the range; the formulas PyTorch computes have NaN there.
HAS_LIMITS = {"gelu", "gelu_tanh"}
LARGE = 1e38


def compare(case):
    """Lines that say where a case differs."""
    inputs = [tensor_of({"dtype": case["dtype"], "shape": shape, "values": values})
              .requires_grad_(True)
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


def records(script):
    """What a script of this folder prints."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), script)
    lines = subprocess.run(["luajit", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def main():
    torch.set_num_threads(1)
    bad, counts = [], []
    for script, judge in (("cases.lua", compare), ("programs.lua", differences)):
        read = records(script)
        counts.append(len(read))
        bad += [line for record in read for line in judge(record)]
    print("\n".join(bad[:40]))
    print(f"{counts[0]} cases and {counts[1]} programs against torch {torch.__version__}, "
          f"{len(bad)} values differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
