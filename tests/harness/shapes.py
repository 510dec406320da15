"""Scripts of many shapes. Each runs under torchrun's environment alone and under rankscope, and must do the same."""

from dataclasses import dataclass, field

# Optimizers import the compiler, which takes longer than the rest of a script, and is never used here.
MODEL = """
import os, sys, torch, types
compiler = types.SimpleNamespace(disable=lambda function, *_, **__: function, graph_break=lambda: None)
torch._dynamo = sys.modules["torch._dynamo"] = compiler
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.randn(48, 4)), 4)
"""
LOOP = f"""{MODEL}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(count=12, after=lambda: None):
    for number, (inputs,) in enumerate(loader):
        if number == count:
            break
        optimizer.zero_grad(); loss = model(inputs).square().sum(); loss.backward(); optimizer.step(); after()
        print(number, loss.item().hex(), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One script. `files` lie beside it; `script` is how it is named, from the folder `cwd`.

    `steps_from`: what its steps must be taken to be. `steps`: how many are recorded; more than 6 if only its end tells
    what its steps are.
    """

    name: str
    code: str
    start: str = LOOP  # comes before the code
    files: dict[str, str] = field(default_factory=dict)
    path: str = "train.py"
    script: str = "train.py"
    cwd: str = "."
    args: tuple[str, ...] = ()
    steps_from: str = "optimizer"
    samples: float | None = 4
    steps: int = 6
