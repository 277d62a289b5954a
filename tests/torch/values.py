"""Numbers of the Lua side as PyTorch's tensors, and how near to each other they must be."""
import math

import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "i64": torch.int64,
          "bool": torch.bool}
TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "bf16": 2e-2}


def tensor_of(record):
    """The tensor that a record of dtype, shape and values (texts, row after row) describes."""
    values = torch.tensor([float(v) for v in record["values"]], dtype=torch.float64)
    return values.to(DTYPES[record["dtype"]]).reshape(record["shape"])


def differs(got, want, tolerance, signed):
    """Is `got` another value than `want`? `signed`: zeros must agree in sign."""
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) != math.isnan(got)
    if math.isinf(want) or math.isinf(got):
        return want != got
    if want == 0 and got == 0:
        return signed and math.copysign(1, want) != math.copysign(1, got)
    return abs(got - want) > tolerance * (abs(want) + 0.1) + 1e-44
