"""Shapes of scripts by what they expect of their process: modules, children, signals, ends."""

from .shapes import Shape

SHAPES = [
    Shape(
        name="what a main module knows of itself",
        code="""
import __main__
print(__name__, os.path.isabs(__file__), os.path.basename(__file__), __spec__, __package__, sys.argv)
print(__main__.model is model, sys.modules['__main__'] is __main__, os.path.basename(sys.path[0]))
print(type(__loader__).__name__, __builtins__ is __import__('builtins'), sorted(n for n in vars() if n[0] != '_'))
train()
""",
        args=("--a", "b c", "--", "*"),
    ),
    Shape(
        name="a script in another folder, beside files named as the standard library's and ours",
        code="""
import helper
print(helper.said, os.path.basename(sys.path[0]))
train()
""",
        files={"jobs/helper.py": "said = 'helper'\n", "yaml.py": "1/0\n", "psutil.py": "1/0\n", "queue.py": "1/0\n"},
        path="jobs/train.py",
        script="jobs/train.py",
    ),
    Shape(
        name="a script above the working folder",
        code="""
print(__file__[-9:])
train()
""",
        script="../train.py",
        cwd="below",
    ),
    Shape(
        name="a script without .py",
        code="""
print(sys.argv)
train()
""",
        path="train",
        script="./train",
    ),
    Shape(
        name="a module",
        code="""
from . import helper
print(__name__, __package__, __spec__.name, helper.said)
train()
""",
        files={"my/__init__.py": "", "my/helper.py": "said = 1\n"},
        path="my/train.py",
        script="my.train",
    ),
    Shape(
        name="a folder",
        code="""
print(__name__, sys.argv)
train()
""",
        path="job/__main__.py",
        script="job",
    ),
    Shape(
        name="works in a new folder and reads what lies beside it",
        code="""
from pathlib import Path
os.makedirs('new'); os.chdir('new')
print((Path(__file__).parent / 'cfg.txt').read_text())
train()
open('weights.txt', 'w').write('w')
""",
        files={"cfg.txt": "hello"},
    ),
    Shape(
        name="pickles its own class in an exit handler",
        code="""
import atexit, pickle
class State:
    def __init__(self): self.step = 3
atexit.register(lambda: print('kept', pickle.loads(pickle.dumps(State())).step))
atexit.register(print, 'first')
train()
""",
    ),
    Shape(
        name="children by spawn, of functions of its own",
        code="""
import multiprocessing as mp
def work(n):
    print('child', __name__, n, flush=True)
if __name__ == '__main__':
    train()
    child = mp.get_context('spawn').Process(target=work, args=(3,))
    child.start(); child.join(); print(child.exitcode)
""",
    ),
    Shape(
        name="children by fork, and a pool",
        code="""
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
def work(n):
    train(2); sys.exit(n)
def square(n): return n * n
fork = mp.get_context('fork')
child = fork.Process(target=work, args=(3,)); child.start(); child.join()
print(child.exitcode)
with ProcessPoolExecutor(2, mp_context=fork) as pool: print(list(pool.map(square, [1, 2])))
train()
""",
    ),
    Shape(
        name="a fork before everything, and its end",
        code="""
import atexit
atexit.register(lambda: print('handler', os.getpid() == parent, flush=True))
parent = os.getpid()
child = os.fork()
if child == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train()
""",
    ),
    Shape(
        name="forks in the loop: one returns, one raises, one trains",
        code="""
def child(n):
    if os.fork() == 0:
        if n == 1: train(3)
        if n == 2: raise ValueError('child')
        open(f'child-{n}', 'w').write('x'); raise SystemExit(n)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
steps = iter(range(99))
train(12, lambda: child(n) if (n := next(steps)) < 4 else None)
""",
    ),
    Shape(
        name="another program as a child",
        code="""
import subprocess
train()
child = [sys.executable, '-c', 'import sys; print(sys.path[0] == str(), len(sys.argv))']
print(subprocess.run(child, capture_output=True, text=True).stdout)
""",
    ),
    Shape(
        name="exits with a number",
        code="""
train()
sys.exit(7)
""",
    ),
    Shape(
        name="exits with words",
        code="""
train()
sys.exit('bye')
""",
    ),
    Shape(
        name="os._exit",
        code="""
train()
os._exit(5)
""",
    ),
    Shape(
        name="fails, with its own hook and exit handlers",
        code="""
import atexit
atexit.register(print, 'handler')
sys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, trace.tb_frame.f_code.co_name)
train()
raise KeyError('late')
""",
    ),
    Shape(
        name="handles SIGUSR1 and SIGTERM",
        code="""
import signal
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda n, f: print('got', n, flush=True))
train(12, lambda: [signal.raise_signal(n) for n in (signal.SIGUSR1, signal.SIGTERM)])
""",
    ),
    Shape(
        name="Ctrl-C is its own",
        code="""
import signal
train()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM))
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print('interrupted')
""",
    ),
    Shape(
        name="asyncio, with signals and threads",
        code="""
import asyncio, signal
async def main():
    loop = asyncio.get_running_loop(); seen = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, seen.set)
    train()
    os.kill(os.getpid(), signal.SIGTERM)
    await seen.wait(); print('seen', await asyncio.to_thread(lambda: 3))
asyncio.run(main())
""",
    ),
    Shape(
        name="counts its threads, and waits for one at the end",
        code="""
import threading, time
print(threading.active_count(), [t.name for t in threading.enumerate()])
train(12, lambda: print(threading.active_count()))
threading.Thread(target=lambda: (time.sleep(0.3), print('last', flush=True))).start()
""",
    ),
    Shape(
        name="its own logging, warnings and stdout",
        code="""
import contextlib, io, logging, warnings
logging.basicConfig(stream=sys.stdout, level='INFO', format='%(name)s %(message)s')
logging.info('root %d', len(logging.getLogger().handlers)); warnings.simplefilter('error')
with contextlib.redirect_stdout(io.StringIO()) as kept: train()
print(kept.getvalue())
""",
    ),
    Shape(
        name="looks at its own source and saves its own objects",
        code="""
import inspect, copyreg
class Net(torch.nn.Linear):
    pass
print(inspect.getsource(train)[:20])
train()
torch.save(Net(2, 2), 'net.pt'); print(type(torch.load('net.pt', weights_only=False)).__module__)
os.remove('net.pt')
""",
    ),
    Shape(
        name="main under record, whose value is used",
        code="""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    train(); return 3
print('%d' % main())
""",
    ),
    Shape(
        name="catches everything in its loop",
        code="""
for epoch in range(2):
    try:
        train()
    except:
        print('caught')
""",
    ),
    Shape(
        name="draws random numbers everywhere",
        code="""
import random
random.seed(1)
train(12, lambda: print(random.random(), torch.rand(1).item().hex()))
print(torch.initial_seed())
""",
    ),
    Shape(
        name="workers of its loader write files",
        code="""
class Data(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, n):
        open(f'read-{n}', 'w').close(); return (torch.full((4,), n / 48),)
loader = DataLoader(Data(), 4, num_workers=2)
train()
""",
    ),
    Shape(
        name="finalizers at its end, and a signal that ends a child",
        code="""
import signal, tempfile, weakref
class Thing:
    def __del__(self): print("deleted", flush=True)
thing = Thing(); folder = tempfile.TemporaryDirectory(); weakref.finalize(model, print, "final")
child = os.fork()
if child == 0:
    signal.raise_signal(signal.SIGTERM); os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
train(); print(os.path.exists(folder.name))
""",
    ),
]
