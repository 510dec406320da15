"""The type of JSON objects that are not described further, such as a summary that a template reads."""

from typing import Any

Json = dict[str, Any]
