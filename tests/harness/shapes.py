"""Scripts of many shapes. Each runs under torchrun's environment alone and under rankscope, and must do the same."""

from dataclasses import dataclass, field

MODEL = """
import os, sys, torch
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


PROCESS = [
    Shape(
        name="what a main module knows of itself",
        code="import __main__\n"
        "print(__name__, os.path.isabs(__file__), os.path.basename(__file__), __spec__, __package__, sys.argv)\n"
        "print(__main__.model is model, sys.modules['__main__'] is __main__, os.path.basename(sys.path[0]))\n"
        "print(type(__loader__).__name__, __builtins__ is __import__('builtins'), sorted(n for n in vars() if n[0] != '_'))\n"
        "train()\n",
        args=("--a", "b c", "--", "*"),
    ),
    Shape(
        name="a script in another folder, beside files named as the standard library's and ours",
        code="import helper\nprint(helper.said, os.path.basename(sys.path[0]))\ntrain()\n",
        path="jobs/train.py",
        script="jobs/train.py",
        files={"jobs/helper.py": "said = 'helper'\n", "yaml.py": "1/0\n", "psutil.py": "1/0\n", "queue.py": "1/0\n"},
    ),
    Shape(
        name="a script above the working folder",
        code="print(__file__[-9:])\ntrain()\n",
        cwd="below",
        script="../train.py",
    ),
    Shape(name="a script without .py", code="print(sys.argv)\ntrain()\n", path="train", script="./train"),
    Shape(
        name="a module",
        code="from . import helper\nprint(__name__, __package__, __spec__.name, helper.said)\ntrain()\n",
        path="my/train.py",
        script="my.train",
        files={"my/__init__.py": "", "my/helper.py": "said = 1\n"},
    ),
    Shape(name="a folder", code="print(__name__, sys.argv)\ntrain()\n", path="job/__main__.py", script="job"),
    Shape(
        name="works in a new folder and reads what lies beside it",
        code="from pathlib import Path\nos.makedirs('new'); os.chdir('new')\n"
        "print((Path(__file__).parent / 'cfg.txt').read_text())\ntrain()\nopen('weights.txt', 'w').write('w')\n",
        files={"cfg.txt": "hello"},
    ),
    Shape(
        name="pickles its own class in an exit handler",
        code="import atexit, pickle\nclass State:\n    def __init__(self): self.step = 3\n"
        "atexit.register(lambda: print('kept', pickle.loads(pickle.dumps(State())).step))\n"
        "atexit.register(print, 'first')\ntrain()\n",
    ),
    Shape(
        name="children by spawn, of functions of its own",
        code="import multiprocessing as mp\ndef work(n):\n    print('child', __name__, n, flush=True)\n"
        "if __name__ == '__main__':\n    train()\n    child = mp.get_context('spawn').Process(target=work, args=(3,))\n"
        "    child.start(); child.join(); print(child.exitcode)\n",
    ),
    Shape(
        name="children by fork, and a pool",
        code="import multiprocessing as mp\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def work(n):\n    train(2); sys.exit(n)\ndef square(n): return n * n\n"
        "fork = mp.get_context('fork')\nchild = fork.Process(target=work, args=(3,)); child.start(); child.join()\n"
        "print(child.exitcode)\nwith ProcessPoolExecutor(2, mp_context=fork) as pool: print(list(pool.map(square, [1, 2])))\n"
        "train()\n",
    ),
    Shape(
        name="a fork before everything, and its end",
        code="import atexit\natexit.register(lambda: print('handler', os.getpid() == parent, flush=True))\n"
        "parent = os.getpid()\nchild = os.fork()\nif child == 0:\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\ntrain()\n",
    ),
    Shape(
        name="forks in the loop: one returns, one raises, one trains",
        code="def child(n):\n    if os.fork() == 0:\n        if n == 1: train(3)\n        if n == 2: raise ValueError('child')\n"
        "        open(f'child-{n}', 'w').write('x'); raise SystemExit(n)\n    print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "steps = iter(range(99))\ntrain(12, lambda: child(n) if (n := next(steps)) < 4 else None)\n",
    ),
    Shape(
        name="another program as a child",
        code="import subprocess\ntrain()\n"
        "print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path[0] == str(), len(sys.argv))'],"
        " capture_output=True, text=True).stdout)\n",
    ),
    Shape(name="exits with a number", code="train()\nsys.exit(7)\n"),
    Shape(name="exits with words", code="train()\nsys.exit('bye')\n"),
    Shape(name="os._exit", code="train()\nos._exit(5)\n"),
    Shape(
        name="fails, with its own hook and exit handlers",
        code="import atexit\natexit.register(print, 'handler')\n"
        "sys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, trace.tb_frame.f_code.co_name)\n"
        "train()\nraise KeyError('late')\n",
    ),
    Shape(
        name="handles SIGUSR1 and SIGTERM",
        code="import signal\nfor number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):\n"
        "    signal.signal(number, lambda n, f: print('got', n, flush=True))\n"
        "train(12, lambda: [signal.raise_signal(n) for n in (signal.SIGUSR1, signal.SIGTERM)])\n",
    ),
    Shape(
        name="Ctrl-C is its own",
        code="import signal\ntrain()\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
        "print(signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM))\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('interrupted')\n",
    ),
    Shape(
        name="asyncio, with signals and threads",
        code="import asyncio, signal\nasync def main():\n    loop = asyncio.get_running_loop(); seen = asyncio.Event()\n"
        "    loop.add_signal_handler(signal.SIGTERM, seen.set)\n    train()\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await seen.wait(); print('seen', await asyncio.to_thread(lambda: 3))\nasyncio.run(main())\n",
    ),
    Shape(
        name="counts its threads, and waits for one at the end",
        code="import threading, time\nprint(threading.active_count(), [t.name for t in threading.enumerate()])\n"
        "train(12, lambda: print(threading.active_count()))\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('last', flush=True))).start()\n",
    ),
    Shape(
        name="its own logging, warnings and stdout",
        code="import contextlib, io, logging, warnings\nlogging.basicConfig(stream=sys.stdout, level='INFO', format='%(name)s %(message)s')\n"
        "logging.info('root %d', len(logging.getLogger().handlers)); warnings.simplefilter('error')\n"
        "with contextlib.redirect_stdout(io.StringIO()) as kept: train()\nprint(kept.getvalue())\n",
    ),
    Shape(
        name="looks at its own source and saves its own objects",
        code="import inspect, copyreg\nclass Net(torch.nn.Linear):\n    pass\nprint(inspect.getsource(train)[:20])\n"
        "train()\ntorch.save(Net(2, 2), 'net.pt'); print(type(torch.load('net.pt', weights_only=False)).__module__)\nos.remove('net.pt')\n",
    ),
    Shape(
        name="main under record, whose value is used",
        code="from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n    train(); return 3\n"
        "print('%d' % main())\n",
    ),
    Shape(
        name="catches everything in its loop",
        code="for epoch in range(2):\n    try:\n        train()\n    except:\n        print('caught')\n",
    ),
    Shape(
        name="draws random numbers everywhere",
        code="import random\nrandom.seed(1)\ntrain(12, lambda: print(random.random(), torch.rand(1).item().hex()))\nprint(torch.initial_seed())\n",
    ),
    Shape(
        name="workers of its loader write files",
        code="class Data(torch.utils.data.Dataset):\n    def __len__(self): return 48\n    def __getitem__(self, n):\n"
        "        open(f'read-{n}', 'w').close(); return (torch.full((4,), n / 48),)\n"
        "loader = DataLoader(Data(), 4, num_workers=2)\ntrain()\n",
    ),
]
STEPS = [
    Shape(
        name="two phases with two optimizers",
        code="head = torch.optim.Adam(model.parameters())\nkeep = optimizer\noptimizer = head\ntrain(4)\noptimizer = keep\n"
        "train()\ntrain()\n",
    ),
    Shape(
        name="an optimizer that never steps",
        code="with torch.no_grad():\n    for _ in range(2):\n        for (inputs,) in loader: print(model(inputs).sum().item().hex())\n",
        steps_from="loader",
        steps=24,
    ),
    Shape(
        name="evaluates before it trains",
        code="with torch.no_grad():\n    for (inputs,) in loader: print(model(inputs).sum().item().hex())\ntrain()\n",
    ),
    Shape(
        name="reads the data once, makes its optimizer late",
        start=MODEL,
        code="print(sum(inputs.sum() for (inputs,) in loader).item().hex())\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for (inputs,) in loader:\n    model(inputs).square().sum().backward(); optimizer.step()\n",
    ),
    Shape(
        name="two loaders together, without an optimizer",
        start=MODEL,
        code="small = DataLoader(TensorDataset(torch.randn(24, 4)), 2)\n"
        "for (a,), (b,) in zip(loader, small): print(model(torch.cat([a, b])).sum().item().hex())\n",
        steps_from="loader",
        samples=6,
    ),
    Shape(
        name="the loop in a thread",
        code="import threading\nt = threading.Thread(target=train); t.start(); t.join()\n",
        samples=None,
    ),
    Shape(
        name="updates parameters by hand",
        start=MODEL,
        code="for step in range(30):\n    loss = model(torch.randn(5, 4)).square().sum(); model.zero_grad(); loss.backward()\n"
        "    with torch.no_grad():\n        for p in model.parameters(): p -= 0.01 * p.grad\n    print(loss.item().hex())\n",
        steps_from="backward",
        samples=None,
    ),
    Shape(
        name="calls its model only",
        start=MODEL,
        code="model = torch.nn.Sequential(model, torch.nn.ReLU())\nwith torch.no_grad():\n"
        "    for step in range(30): print(model(torch.randn(5, 4)).sum().item().hex())\n",
        steps_from="model",
        samples=None,
    ),
    Shape(
        name="a few calls of its model only",
        start=MODEL,
        code="with torch.no_grad():\n    for step in range(8): print(model(torch.randn(5, 4)).sum().item().hex())\n",
        steps_from="model",
        samples=None,
    ),
    Shape(
        name="critic and generator",
        code="critic = torch.optim.RMSprop(model.parameters(), lr=1e-3)\nfor _ in range(5):\n"
        "    for n, (inputs,) in enumerate(loader):\n        model(inputs).sum().backward(); critic.step()\n"
        "        if n % 5 == 4: optimizer.step(); print(model.weight.sum().item().hex())\n",
    ),
    Shape(
        name="a profiler that is started and never stepped",
        code="from torch.profiler import profile, schedule\nwith profile(schedule=schedule(wait=1, warmup=1, active=1)): train()\n",
    ),
    Shape(
        name="a closure, and the samples in the second dimension",
        code="optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)\n"
        "loader = DataLoader(TensorDataset(torch.randn(48, 7, 4)), 4, collate_fn=lambda b: torch.stack([x for (x,) in b], 1))\n"
        "for inputs in loader:\n    def closure():\n        optimizer.zero_grad(); loss = model(inputs).square().sum(); loss.backward(); return loss\n"
        "    print(optimizer.step(closure).item().hex())\n",
    ),
    Shape(
        name="a data set that gives what it likes",
        code="loader = DataLoader([(torch.full((9, 4), n / 12),) for n in range(12)], batch_size=None)\ntrain()\n",
        samples=None,
    ),
    Shape(
        name="validates with another loader after each epoch",
        code="held = DataLoader(TensorDataset(torch.randn(64, 4)), 2)\nfor _ in range(2):\n    train(4)\n"
        "    with torch.no_grad(): print(sum(model(x).sum() for (x,) in held).item().hex())\ntrain(4)\n",
    ),
]
