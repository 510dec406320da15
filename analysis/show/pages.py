"""The templates of reports and pages, with their filters. HTML templates escape every name from a file."""

import base64
import contextlib
import functools
import gzip
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from jinja2.bccache import Bucket

from rankscope.analysis.show.words import advice_of, byte_size, slowdowns
from rankscope.conf.plain_text import markdown, visible
from rankscope.conf.user_cache import is_private, user_folder


def text_of(name: str) -> str:
    return files("rankscope.analysis.show").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@jinja2.pass_context  # jinja runs it whenever the template is rendered; otherwise the text would be compiled into it
def _file(_: jinja2.runtime.Context, name: str) -> str:
    return text_of(name)


def packed(data: Any) -> str:
    """Return plain values as text for a page: JSON, gzipped, in base64. `unpack` of base.js reads it."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(data), 6, mtime=0)).decode()


class AsIs(str):
    """Text for a place in Markdown where tags and columns mean nothing."""


def middle(name: str, most: int = 72) -> str:
    """Cut a long name in the middle: kernels differ at both ends."""
    if len(name) <= most:
        return name
    head = (most - 1) * 2 // 3
    return f"{name[:head]}…{name[head + 1 - most :]}"


def _visible(value: Any) -> Any:
    """Make control characters visible. Text that is HTML already (`Markup`) came through here before."""
    return visible(value) if type(value) is str else value


def _markdown(value: Any) -> Any:
    return value if isinstance(value, AsIs) else markdown(value) if isinstance(value, str) else value


class _Compiled(jinja2.FileSystemBytecodeCache):
    """Compiled templates in the user's cache: compiling those of a report took 60 ms of 0.9 s.

    jinja compares the digest of the source. The folder is private, as that of the compiled scanner.
    """

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):  # a full disk costs only time
            super().dump_bytecode(bucket)


def _compiled() -> _Compiled | None:
    folder = user_folder() / "compiled-templates"
    return _Compiled(str(folder)) if is_private(folder) else None


@functools.cache
def environment(template: str, unknown: str = "-") -> jinja2.Environment:
    """Return the environment for a template; `unknown` is the text for a number that is None."""
    found = jinja2.Environment(
        autoescape=template.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        loader=jinja2.FunctionLoader(text_of),
        finalize=_markdown if template.endswith(".md.jinja") else _visible,
        bytecode_cache=_compiled(),
    )

    def number(form: str, otherwise: str = unknown) -> Any:
        return lambda value: otherwise if value is None else form.format(value)

    found.filters |= {
        "ms": number("{:.2f}"),
        "unit": lambda value, unit: number("{:.1%}" if unit == "share" else "{:.2f}")(value),
        "one": number("{:.1f}"),
        "four": number("{:.4g}"),
        "change": lambda ratio: (
            unknown if ratio is None else f"{ratio - 1:+.1%}" if ratio < 10 else f"{ratio:.0f} times"
        ),
        "whole": number("{:.0f}"),
        "percent": number("{:.1%}"),
        "whole_percent": number("{:.0%}", "-"),
        "percents": lambda value: "" if value is None else f" ({value[0]:.1%} to {value[1]:.1%})",
        "interval": lambda value: "" if value is None else f" ({value[0]:.2f} to {value[1]:.2f})",
        "times": number("x {:.2f}"),
        "file": _file,
        "middle": middle,
        "size": lambda value: unknown if value is None else byte_size(value),
        "or_dash": number("{}"),
        "slowdowns": slowdowns,
        "code": lambda text: AsIs(visible(text).replace("\n", "\\n")),  # one line in a fenced block
        "advice": advice_of,
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
    }
    return found


def render(template: str, unknown: str = "-", **values: Any) -> str:
    return environment(template, unknown).get_template(template).render(**values)
