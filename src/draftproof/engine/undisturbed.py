"""The state of torch under which models run, whatever the caller has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast of the caller's, which would change dtypes under the models."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield
