"""YAML as `config.yaml` needs it: plain data, without aliases."""

from typing import Any

import yaml

Error = yaml.YAMLError


class _Plain(yaml.SafeLoader):
    """YAML without aliases, which `dump` never writes: a few of them can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        return super().compose_node(parent, index)


def load(text: bytes) -> Any:
    """Read YAML. Raises `Error`, `ValueError`, `TypeError` or `RecursionError`."""
    return yaml.load(text, _Plain)


def dump(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False)
