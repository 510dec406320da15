"""Shapes of scripts by what a step of theirs is."""

from .shapes import MODEL, Shape

SHAPES = [
    Shape(
        name="two phases with two optimizers",
        code="""
head = torch.optim.Adam(model.parameters())
keep = optimizer
optimizer = head
train(4)
optimizer = keep
train()
train()
""",
    ),
    Shape(
        name="an optimizer that never steps",
        code="""
with torch.no_grad():
    for _ in range(2):
        for (inputs,) in loader: print(model(inputs).sum().item().hex())
""",
        steps_from="loader",
        steps=24,
    ),
    Shape(
        name="evaluates before it trains",
        code="""
with torch.no_grad():
    for (inputs,) in loader: print(model(inputs).sum().item().hex())
train()
""",
    ),
    Shape(
        name="reads the data once, makes its optimizer late",
        code="""
print(sum(inputs.sum() for (inputs,) in loader).item().hex())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (inputs,) in loader:
    model(inputs).square().sum().backward(); optimizer.step()
""",
        start=MODEL,
    ),
    Shape(
        name="two loaders together, without an optimizer",
        code="""
small = DataLoader(TensorDataset(torch.randn(24, 4)), 2)
for (a,), (b,) in zip(loader, small): print(model(torch.cat([a, b])).sum().item().hex())
""",
        start=MODEL,
        steps_from="loader",
        samples=6,
    ),
    Shape(
        name="the loop in a thread",
        code="""
import threading
t = threading.Thread(target=train); t.start(); t.join()
""",
        samples=None,
    ),
    Shape(
        name="updates parameters by hand",
        code="""
for step in range(30):
    loss = model(torch.randn(5, 4)).square().sum(); model.zero_grad(); loss.backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 0.01 * p.grad
    print(loss.item().hex())
""",
        start=MODEL,
        steps_from="backward",
        samples=None,
    ),
    Shape(
        name="calls its model only",
        code="""
model = torch.nn.Sequential(model, torch.nn.ReLU())
with torch.no_grad():
    for step in range(30): print(model(torch.randn(5, 4)).sum().item().hex())
""",
        start=MODEL,
        steps_from="model",
        samples=None,
    ),
    Shape(
        name="a few calls of its model only",
        code="""
with torch.no_grad():
    for step in range(8): print(model(torch.randn(5, 4)).sum().item().hex())
""",
        start=MODEL,
        steps_from="model",
        samples=None,
    ),
    Shape(
        name="critic and generator",
        code="""
critic = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(5):
    for n, (inputs,) in enumerate(loader):
        model(inputs).sum().backward(); critic.step()
        if n % 5 == 4: optimizer.step(); print(model.weight.sum().item().hex())
""",
    ),
    Shape(
        name="a profiler that is started and never stepped",
        code="""
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=1, warmup=1, active=1)): train()
""",
    ),
    Shape(
        name="a closure, and the samples in the second dimension",
        code="""
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
loader = DataLoader(TensorDataset(torch.randn(48, 7, 4)), 4, collate_fn=lambda b: torch.stack([x for (x,) in b], 1))
for inputs in loader:
    def closure():
        optimizer.zero_grad(); loss = model(inputs).square().sum(); loss.backward(); return loss
    print(optimizer.step(closure).item().hex())
""",
    ),
    Shape(
        name="a data set that gives what it likes",
        code="""
loader = DataLoader([(torch.full((9, 4), n / 12),) for n in range(12)], batch_size=None)
train()
""",
        samples=None,
    ),
    Shape(
        name="validates with another loader after each epoch",
        code="""
held = DataLoader(TensorDataset(torch.randn(64, 4)), 2)
for _ in range(2):
    train(4)
    with torch.no_grad(): print(sum(model(x).sum() for (x,) in held).item().hex())
train(4)
""",
    ),
    Shape(
        name="a stream without a length",
        code="""
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter([(torch.full((4,), n / 50),) for n in range(50)])
loader = DataLoader(Stream(), 4)
train(13)
""",
    ),
    Shape(
        name="batches that a thread fetches",
        code="""
import queue, threading
ready = queue.Queue(2)
def fill():
    for (x,) in loader: ready.put(x)
    ready.put(None)
threading.Thread(target=fill, daemon=True).start()
while (x := ready.get()) is not None:
    optimizer.zero_grad(); loss = model(x).square().sum(); loss.backward(); optimizer.step(); print(loss.item().hex())
""",
        samples=None,
    ),
]
