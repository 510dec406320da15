"""`Monitor`: watches a long run from inside its loop, names a late rank and the cause, and reports changes of speed.

    monitor = Monitor("runs")
    for inputs, targets in monitor.loader(loader):
        with monitor.forward:
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        monitor.step()

The loop never waits for the device. Every few steps the ranks exchange a few numbers over gloo on the hosts, without
waiting for each other. docs/monitor.md has the definitions, the false-alarm rates and the files.
"""

from collections.abc import Callable
from pathlib import Path

from rankscope.harness.observe.instrument import Instrument
from rankscope.harness.observe.marks import Source
from rankscope.harness.watch.event import Event
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.watch import Watch


class Monitor(Instrument):
    """Watches the steps of a loop. All ranks create one at the same place before the loop.

    The run gets a new folder in `folder`. Every `every` steps the ranks exchange the parts of their steps. Statistics
    are over the last `window` steps. The first `warmup` steps are not judged. A run whose steps do not change has at
    most one false alarm in `false_alarm_steps` steps. If `trace_steps` is above 0, an event opens a window of
    torch.profiler for that many steps, at most `max_windows` times. `steps_from="optimizer"` or `"loader"` finds steps
    without calls of `step`.
    """

    def __init__(
        self,
        folder: str | Path = "runs",
        *,
        every: int = 5,
        window: int = 200,
        warmup: int = 20,
        false_alarm_steps: float = 1e6,
        least_change: float = 0.05,
        trace_steps: int = 0,
        max_windows: int = 2,
        part_steps: int = 10_000,
        tensorboard: bool = False,
        prometheus_port: int | None = None,
        wandb: bool | str = False,
        mlflow: bool | str = False,
        steps_from: Source = "recorder",
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        options = Options(
            parent=Path(folder).absolute(),
            every=every,
            window=window,
            warmup=warmup,
            alpha=every / false_alarm_steps / 2,  # half for each of the two judgements
            least_change=least_change,
            trace_steps=trace_steps,
            max_windows=max_windows,
            part_steps=part_steps,
            tensorboard=tensorboard,
            prometheus_port=prometheus_port,
            wandb=wandb,
            mlflow=mlflow,
            steps_from=steps_from,
            on_event=on_event,
        )
        self._watch = Watch(options)
        super().__init__(self._watch)

    @property
    def events(self) -> list[Event]:
        """The events so far; the same on every rank."""
        return list(self._watch.events)

    @property
    def folder(self) -> Path | None:
        """The folder of this run, None before the first step."""
        return None if self._watch.folder is None else self._watch.folder.path

    def close(self) -> None:
        """Write what is left. Called automatically when the process ends."""
        self._watch.close()
