"""What ``dtype="auto"`` means for a model on the fused executor: the fastest precision whose answers stay the same.

Measured once for a checkpoint (`models.quality`) and kept in the cache folder; known models bring their verdict along.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftproof.errors import ModelError
from draftproof.models import fused
from draftproof.models.fused import FusedTarget, Precision
from draftproof.models.fused.weights import safetensors_files
from draftproof.models.kernels.compiling import FOLDER, stamp_of
from draftproof.models.kernels.packing import fast
from draftproof.models.loading import float_dtype
from draftproof.models.quality import ANSWER_TOKENS, Quality, answers_of, compare
from draftproof.models.quality_prompts import PROMPTS
from draftproof.models.registry.cache import MANIFEST, cache_root, read_manifest
from draftproof.models.registry.known import KnownModel, find_known
from draftproof.models.registry.progress import ConsoleProgress, Progress

if TYPE_CHECKING:
    from draftproof.models.executor import FusedSource

SMALL = 50_000_000
"""Parameters under which nothing is gained worth a loss: such a model's weights fit the processor's own caches."""
FASTEST_FIRST = (Precision.INT4, Precision.INT8)
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14
_log = logging.getLogger(__name__)

Qualities = dict[Precision, Quality]
Measure = Callable[[Precision], Quality]


def precision_for(source: FusedSource, progress: Progress | None = None) -> Precision:
    """The precision that ``dtype="auto"`` means for a checkpoint of 16 bits a weight; says why in the log.

    Args:
        source: the checkpoint.
        progress: told when something has to be measured, which takes some seconds, once.
    """
    precision, why = _choose(source, progress or ConsoleProgress())
    _log.info("%s: dtype auto is %s: %s", source.name, precision.value, why)
    return precision


def _choose(source: FusedSource, progress: Progress) -> tuple[Precision, str]:
    kind = float_dtype("auto", source.config, torch.device("cpu"))
    plain = Precision(str(kind).removeprefix("torch."))
    if source.tensors.parameters < SMALL:
        return plain, f"fewer than {SMALL // 1_000_000} million parameters"
    quick = [precision for precision in FASTEST_FIRST if fast(precision)]
    if not quick:
        return plain, "this processor has no instructions for products of integers"
    known = known_model(source.path)
    if known is not None and known.auto_dtype is not None:
        precision = Precision(known.auto_dtype)
        return (precision, "measured for this known model") if precision in quick else (plain, "as stored")
    return _measured(source, quick, plain, progress)


def _measured(
    source: FusedSource, quick: list[Precision], plain: Precision, progress: Progress
) -> tuple[Precision, str]:
    file = _file(source.path)
    qualities = load_qualities(file)
    if chosen := first_good(quick, qualities):
        return chosen, str(qualities[chosen])
    if any(precision not in qualities for precision in quick):
        with progress.phase(f"measuring in which precision {source.name} answers as it should (once)"):
            measure_until_good(quick, qualities, _measuring(source))
        save_qualities(file, qualities)
    found = "; ".join(
        f"{precision.value} {qualities[precision]}" for precision in quick if precision in qualities
    )
    return first_good(quick, qualities) or plain, found


def first_good(quick: list[Precision], qualities: Qualities) -> Precision | None:
    """The first precision that is good; None where that is still unknown, or none is."""
    for precision in quick:
        if precision not in qualities:
            return None
        if qualities[precision].good:
            return precision
    return None


def measure_until_good(quick: list[Precision], qualities: Qualities, measure: Measure) -> None:
    """Fill in what is missing, up to the first good one."""
    for precision in quick:
        if precision not in qualities:
            qualities[precision] = measure(precision)
        if qualities[precision].good:
            return


def _measuring(source: FusedSource) -> Measure:
    """Compares with bfloat16 on the built-in questions; the reference and its answers are made at the first use."""
    reference: list[Any] = []

    def measure(precision: Precision) -> Quality:
        if not reference:
            target = FusedTarget(source.spec, Precision.BFLOAT16, source.name)
            prompts = _encoded(source.path, source.spec.max_position - ANSWER_TOKENS)
            reference[:] = [target, answers_of(target, prompts, target.end_token_ids)]
        try:
            other = FusedTarget(source.spec, precision, source.name)
        except ValueError:  # weights that do not go into integers
            return Quality(0.0, float("inf"), 0)
        return compare(reference[0], other, reference[1])

    return measure


def _encoded(path: Path, room: int) -> list[list[int]]:
    """The built-in questions as token ids, through the chat template where there is one."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # tokenizers raise whatever their files make them
        raise ModelError("DP261", f"cannot load the tokenizer in {path}: {error}") from error
    texts = list(PROMPTS)
    if getattr(tokenizer, "chat_template", None):
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in texts
        ]
        encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    else:
        encoded = [tokenizer(text)["input_ids"] for text in texts]
    return [ids[:room] for ids in encoded]


# --- what is kept ---------------------------------------------------------------------------------------------------


def known_model(path: Path) -> KnownModel | None:
    """The entry of the table of known models that this folder was made for, as it was converted last."""
    if not (path / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(path)
    except ModelError:
        return None
    entry = find_known(manifest.name)
    same = entry is not None and (manifest.source_sha256, manifest.conversion) == (
        entry.source.sha256,
        entry.conversion,
    )
    return entry if same else None


def fingerprint(folder: Path) -> str:
    """Tells checkpoints apart, hexadecimal: of the config, the files' sizes and headers, and samples spread over each.

    Training changes every part of every weight, so samples are enough, and a large model is not read whole.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in safetensors_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES + 1):
                stream.seek(max(0, size - _SAMPLE_BYTES) * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _file(folder: Path) -> Path:
    code = "".join(stamp_of(part) for part in (FOLDER, Path(fused.__file__).parent))
    key = f"{fingerprint(folder)}:{code}"
    return cache_root() / "quality" / f"quality-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def load_qualities(file: Path) -> Qualities:
    """What was measured; nothing where there is no file, or none that can be read."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {Precision(name): Quality(**entry) for name, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save_qualities(file: Path, qualities: Qualities) -> None:
    """Keep what was measured; where that cannot be written, the next start measures again."""
    text = json.dumps(
        {precision.value: asdict(quality) for precision, quality in qualities.items()}, indent=1
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".quality-", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(name, file)  # at once: another process may be reading
        except BaseException:
            os.unlink(name)
            raise
    except OSError:
        _log.debug("what was measured could not be kept in %s", file.parent)
