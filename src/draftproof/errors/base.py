"""The exception classes. Every user-visible error is one of these and carries a code from the catalog."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.errors.catalog import explanation


class DraftproofError(Exception):
    """Base of all errors raised on purpose. `str(error)` is the one-line message, without the code.

    Args:
        code: a code of the catalog, e.g. ``"DP105"``. An unknown one is a bug and raises `KeyError`.
        message: one line: what was expected, what came, what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = explanation(code).code
        self.name = explanation(code).name
        self.message = message
        self.results: Sequence[object] = ()
        """What was finished all the same, where one of several requests failed (`LLM.generate`)."""

    def __reduce__(self) -> tuple[type[DraftproofError], tuple[str, str]]:
        return type(self), (self.code, self.message)


class ContractError(DraftproofError, ValueError):
    """A precondition of a verification function does not hold (codes DP1xx)."""


class ModelError(DraftproofError):
    """A model cannot be found, fetched, read or used as a target (codes DP2xx)."""


class DrafterError(DraftproofError):
    """A drafter cannot be read, or does not fit the target (codes DP3xx)."""


class RequestError(DraftproofError, ValueError):
    """A prompt or a sampling parameter is not acceptable (codes DP4xx)."""


class EngineError(DraftproofError):
    """Something went wrong inside a running engine; the requests it touched have ended (codes DP44x)."""


class ServerError(DraftproofError):
    """A server cannot take a request, now or at all, or cannot start (codes DP6xx).

    Args:
        code, message: as for `DraftproofError`.
        param: the field of the request that is at fault, in dots and indices (``"messages.0.content"``), or None.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(code, message)
        self.param = param

    def __reduce__(self) -> tuple[type[DraftproofError], tuple[str, str]]:
        return type(self), (self.code, self.message, self.param)  # type: ignore[return-value]


class DraftproofWarning(UserWarning):
    """Something works, but with a weaker promise than asked for; the message says which."""
