"""What an installation holds: pyproject.toml names every package, and every folder with code is one."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("conf", "harness", "launch", "models", "analysis")


def test_every_package_is_installed() -> None:
    """An editable installation also finds a package that the list lacks, so nothing else would notice it."""
    found = {path.parent.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("__init__.py")}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == listed
    assert listed == sorted(".".join(["rankscope", *path.parts]) for path in found)
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {f"rankscope.{name}": name for name in FOLDERS}


def test_folders_with_code_are_packages() -> None:
    folders = {path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
