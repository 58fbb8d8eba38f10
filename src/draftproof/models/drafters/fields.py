"""Typed look-ups in a JSON object, with errors that name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from draftproof.errors import DrafterError


class Fields:
    """A JSON object and the place it came from. ``null`` counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def names(self) -> Iterable[str]:
        return self._values.keys()

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def or_else(self, other: Fields) -> Fields:
        """These fields, with `other`'s where these have none."""
        own = {name: value for name, value in self._values.items() if value is not None}
        return Fields({**other._values, **own}, self.where)

    def count(self, name: str, *, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; `default` is returned unchecked when the field is absent."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.invalid(f"{name} must be a whole number >= {minimum}, got {value!r}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.invalid(f"{name} must be a finite number, got {value!r}")
        return float(value)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            raise self.invalid(f"{name} must be true or false, got {value!r}")
        return value

    def refuse_unless(self, name: str, neutral: Any) -> None:
        """Refuse a field that is present with any value but the one that changes nothing."""
        value = self.get(name)
        if value is not None and value != neutral:
            raise self.unsupported(
                name, f"only {neutral!r} is supported" if neutral is not None else "not supported"
            )

    def invalid(self, message: str) -> DrafterError:
        return DrafterError("DP302", f"{self.where}: {message}")

    def unsupported(self, name: str, why: str) -> DrafterError:
        value = self.get(name)
        shown = "" if isinstance(value, Mapping) else f" = {value!r}"
        return DrafterError("DP303", f"{self.where}: {name}{shown}: {why}")
