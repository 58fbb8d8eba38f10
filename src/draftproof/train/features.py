"""The target's view of every response: taps, and its own likeliest tokens. Kept as far as allowed, else computed when asked.

Features of one response come from one teacher-forced pass, and the target's rows do not depend on their company, so a kept
sample and a computed one are the same, bit for bit, wherever the target is row-invariant.

On disk they lie in shards, safetensors files of some dozens of responses each. A shard says what it holds (the target, its
precision, the taps, the responses); it appears under its name only when it is whole, so a killed run goes on behind the last one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from draftproof.errors import DraftproofWarning, RequestError
from draftproof.models.executor import TargetModel, precision_of
from draftproof.models.rows import Segment
from draftproof.train.bars import Progress, StageProgress, silent
from draftproof.train.responses import Response

SHARD_BYTES = 64 << 20
"""Features of a shard, about."""
PASS_ROWS = 512
"""Tokens of a pass, about; a longer response has one of its own."""
_PROBE_TOKENS = 48
_SUFFIX = ".safetensors"
_NAME = "features-"


@dataclass(frozen=True)
class Sample:
    """One response as the drafter is taught it; tensors on the CPU.

    Attributes:
        token_ids: int64 ``[n]``, prompt, then response.
        response_start: index of the first response token, at least 1.
        features: ``[n, taps * hidden]`` in the target's feature dtype; row i is what the taps held after token i.
        top_ids: int32 ``[n - response_start, k]``, the target's k likeliest tokens for each response position (of the row
            before it), likeliest first; None when k = 0.
        top_logprobs: float32 of the same shape, their log-probabilities at temperature 1.
    """

    token_ids: torch.Tensor
    response_start: int
    features: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None


class FeatureSource(Protocol):
    """Samples by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Sample: ...


def open_features(
    target: TargetModel,
    responses: Sequence[Response],
    taps: Sequence[int],
    *,
    folder: Path | None = None,
    max_bytes: int = 0,
    top_k: int = 0,
    progress: Progress = silent,
    stop: Callable[[], bool] | None = None,
    fill: bool = True,
) -> Features:
    """Samples of responses, the first of them from disk or memory, the rest computed when asked for.

    Args:
        target: whose features; the very precision that the drafter will run beside.
        responses: in the order of the samples.
        taps: layers, in the drafter's order.
        folder: where to keep what was computed. What lies there from another target, precision or choice of taps is deleted,
            with a warning. None: kept in memory, from the first use on.
        max_bytes: most bytes to keep.
        top_k: how many of the target's likeliest tokens to give; 0 for none.
        progress: told about five times a second while the folder is filled.
        stop: ends the filling early; the rest is then computed when asked for.
        fill: False: take what is in the folder and write nothing (for all but one of several processes).

    Raises:
        ModelError: DP257, there is no such tap.
        RequestError: DP507, the folder cannot be used.
    """
    computer = _Computer(target, tuple(taps), top_k)
    if folder is None or max_bytes <= 0:
        return Features(computer, responses, None, max_bytes)
    shards = _Shards(folder, computer, responses, max_bytes)
    if fill:
        shards.fill(progress, stop or (lambda: False))
    return Features(computer, responses, shards, 0)


class Features:
    """A `FeatureSource`. Not for several threads at once."""

    def __init__(
        self, computer: _Computer, responses: Sequence[Response], shards: _Shards | None, memory: int
    ) -> None:
        self._computer, self._responses, self._shards = computer, responses, shards
        self._memory: dict[int, Sample] = {}
        self._room = memory

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def kept(self) -> int:
        """Samples that need not be computed again."""
        return self._shards.kept if self._shards is not None else len(self._memory)

    def __getitem__(self, index: int) -> Sample:
        return self.batch([index])[0]

    def batch(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples; those that have to be computed share passes.

        Raises:
            IndexError: there is no such sample.
        """
        size = len(self)
        if any(not -size <= index < size for index in indices):
            raise IndexError(f"samples go from 0 to {size - 1}, got {list(indices)}")
        places = [index % size for index in indices]
        found = {place: sample for place in places if (sample := self._find(place)) is not None}
        missing = [place for place in dict.fromkeys(places) if place not in found]
        computed = self._computer.samples([self._responses[place] for place in missing])
        for place, sample in zip(missing, computed, strict=True):
            found[place] = sample
            self._keep(place, sample)
        return [found[place] for place in places]

    def _find(self, index: int) -> Sample | None:
        if self._shards is not None:
            return self._shards.get(index)
        return self._memory.get(index)

    def _keep(self, index: int, sample: Sample) -> None:
        if self._shards is not None:
            return
        size = _bytes_of(sample)
        if size <= self._room:
            self._room -= size
            self._memory[index] = sample


def _bytes_of(sample: Sample) -> int:
    tensors = (sample.token_ids, sample.features, sample.top_ids, sample.top_logprobs)
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


class _Computer:
    """Teacher-forced passes."""

    def __init__(self, target: TargetModel, taps: tuple[int, ...], top_k: int) -> None:
        self.target, self.taps, self.top_k = target, taps, min(top_k, target.info.vocab_size)
        probe = self._probe()
        assert probe.features is not None
        self.row_bytes = probe.features.shape[1] * probe.features.element_size()
        said = {
            "model_type": target.info.model_type,
            "layers": target.info.num_layers,
            "precision": precision_of(target),
            "dtype": str(probe.features.dtype),
            "taps": list(taps),
            "top_k": self.top_k,
            # What it answers tells one target from another better than any name.
            "features": _digest(probe.features),
            "logits": _digest(probe.logits),
        }
        self.identity = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]

    def _probe(self) -> Any:
        """A pass over a fixed sequence, through every layer and the head."""
        size = min(_PROBE_TOKENS, self.target.info.max_position)
        tokens = torch.arange(1, size + 1) * 7919 % self.target.info.vocab_size
        kv = self.target.new_sequence()
        return self.target.forward([Segment(kv, tokens.to(self.target.device), size - 1)], self.taps)

    def sample_bytes(self, response: Response) -> int:
        """What a sample takes on disk, about."""
        rows = len(response.prompt_ids) + len(response.output_ids)
        return rows * (self.row_bytes + 8) + len(response.output_ids) * self.top_k * 8

    def samples(self, responses: Sequence[Response]) -> list[Sample]:
        """Of each response, in order; several go through a pass at once."""
        made: list[Sample] = []
        group: list[Response] = []
        rows = 0
        for response in responses:
            size = len(response.prompt_ids) + len(response.output_ids)
            if group and rows + size > PASS_ROWS:
                made += self._pass(group)
                group, rows = [], 0
            group.append(response)
            rows += size
        return made + (self._pass(group) if group else [])

    def _pass(self, responses: Sequence[Response]) -> list[Sample]:
        target = self.target
        segments = []
        for response in responses:
            tokens = torch.tensor(response.prompt_ids + response.output_ids, device=target.device)
            # The first response token is predicted by the prompt's last row.
            first = len(response.prompt_ids) - 1 if self.top_k else len(tokens)
            segments.append(Segment(target.new_sequence(), tokens, first))
        out = target.forward(segments, self.taps)
        assert out.features is not None
        made, row, wanted = [], 0, 0
        for response, segment in zip(responses, segments, strict=True):
            # Copies: a view would hold the whole pass, and a tensor of inference mode cannot be learnt from.
            features = out.features[row : row + segment.count].clone().cpu()
            row += segment.count
            ids = probabilities = None
            if self.top_k:
                count = len(response.output_ids)
                ids, probabilities = _likeliest(out.logits[wanted : wanted + count], self.top_k)
                wanted += count + 1  # nothing follows the last token
            start = len(response.prompt_ids)
            made.append(Sample(segment.token_ids.cpu(), start, features, ids, probabilities))
        return made


def _likeliest(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = logits.float()
    top = rows.topk(k, dim=-1)
    return top.indices.to("cpu", torch.int32), (top.values - rows.logsumexp(-1, keepdim=True)).cpu()


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach().to("cpu").contiguous()
    return hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class _Shard:
    """Responses ``[first, first + count)``."""

    path: Path
    identity: str
    first: int
    count: int


class _Shards:
    """The folder."""

    def __init__(
        self, folder: Path, computer: _Computer, responses: Sequence[Response], max_bytes: int
    ) -> None:
        self._folder, self._computer, self._responses = folder, computer, responses
        self._planned = self._plan(max_bytes)
        self._firsts = [shard.first for shard in self._planned]
        self._open: dict[int, Any] = {}
        self._whole = {number for number, shard in enumerate(self._planned) if _is_whole(shard)}

    def _plan(self, max_bytes: int) -> list[_Shard]:
        """Which responses go into which shard; follows from the responses alone, up to the limit."""
        planned: list[_Shard] = []
        first = size = total = 0
        for index, response in enumerate(self._responses):
            own = self._computer.sample_bytes(response)
            if total + own > max_bytes:
                break
            total, size = total + own, size + own
            if size >= SHARD_BYTES:
                planned.append(self._shard(len(planned), first, index + 1))
                first, size = index + 1, 0
        else:
            index = len(self._responses)
        if index > first:
            planned.append(self._shard(len(planned), first, index))
        return planned

    def _shard(self, number: int, first: int, end: int) -> _Shard:
        said = hashlib.sha256(self._computer.identity.encode())
        for response in self._responses[first:end]:
            said.update(json.dumps([response.prompt_ids, response.output_ids]).encode())
        return _Shard(
            self._folder / f"{_NAME}{number:05d}{_SUFFIX}", said.hexdigest()[:32], first, end - first
        )

    @property
    def kept(self) -> int:
        return sum(self._planned[number].count for number in self._whole)

    def fill(self, progress: Progress, stop: Callable[[], bool]) -> None:
        """Compute and write what is missing."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            self._fill(progress, stop)
        except OSError as error:
            raise RequestError(
                "DP507", f"cannot keep features in {self._folder}: {error.strerror or error}"
            ) from error

    def _clear(self) -> None:
        """Remove what another target, other taps or other responses have left, and halves of files."""
        mine = {self._planned[number].path for number in self._whole}
        strange = [path for path in self._folder.glob(f"{_NAME}*") if path not in mine]
        if any(path.suffix == _SUFFIX for path in strange):
            warnings.warn(
                f"{self._folder} holds features that are damaged or of another target, precision, choice of taps or set of "
                "responses: they are computed anew",
                DraftproofWarning,
                stacklevel=5,
            )
        for path in strange:
            path.unlink()

    def _fill(self, progress: Progress, stop: Callable[[], bool]) -> None:
        start, tokens, done = time.perf_counter(), 0, self.kept
        found, total = done, sum(shard.count for shard in self._planned)
        told = 0.0
        for number, shard in enumerate(self._planned):
            if number in self._whole:
                continue
            made: list[Sample] = []
            for group in _passes(self._responses[shard.first : shard.first + shard.count]):
                if stop():
                    return
                made += self._computer.samples(group)
                tokens += sum(len(one.prompt_ids) + len(one.output_ids) for one in group)
                now = time.perf_counter()
                if now - told > 0.2:
                    told = now
                    progress(StageProgress("features", done + len(made), total, found, tokens, now - start))
            if not _write(shard, made):
                warnings.warn(
                    f"no room on disk for more features in {self._folder}: those of {total - done} of {total} responses are "
                    "computed whenever they are needed",
                    DraftproofWarning,
                    stacklevel=6,
                )
                return
            self._whole.add(number)
            done += shard.count
        progress(StageProgress("features", done, total, found, tokens, time.perf_counter() - start))

    def get(self, index: int) -> Sample | None:
        """A sample; None where it is not kept."""
        number = bisect_right(self._firsts, index) - 1
        if number not in self._whole:
            return None
        shard = self._planned[number]
        place = index - shard.first
        if place >= shard.count:
            return None
        return _read(self._opened(number), self._responses[shard.first : shard.first + shard.count], place)

    def _opened(self, number: int) -> Any:
        """The shard's tensors; files are mapped into memory and read when used."""
        if number not in self._open:
            self._open[number] = safe_open(self._planned[number].path, framework="pt")
        return self._open[number]


def _passes(responses: Sequence[Response]) -> list[list[Response]]:
    """The groups in which `_Computer.samples` would take them, so that one can stop between two."""
    groups: list[list[Response]] = []
    rows = PASS_ROWS + 1
    for response in responses:
        size = len(response.prompt_ids) + len(response.output_ids)
        if rows + size > PASS_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(response)
        rows += size
    return groups


def _write(shard: _Shard, samples: Sequence[Sample]) -> bool:
    """Write a shard, whole or not at all; whether the disk had room."""
    tensors = {"features": torch.cat([sample.features for sample in samples]).cpu()}
    if samples[0].top_ids is not None:
        tensors["top_ids"] = torch.cat([s.top_ids for s in samples if s.top_ids is not None]).cpu()
        tensors["top_logprobs"] = torch.cat(
            [s.top_logprobs for s in samples if s.top_logprobs is not None]
        ).cpu()
    half = shard.path.with_suffix(".half")
    try:
        save_file(tensors, half, metadata={"identity": shard.identity})
        with half.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(half, shard.path)
    except (OSError, SafetensorError) as error:
        half.unlink(missing_ok=True)
        if _is_full(error):
            return False
        if isinstance(error, OSError):
            raise
        raise OSError(str(error)) from error
    return True


def _is_full(error: Exception) -> bool:
    """Whether the disk had no room; safetensors has its own class for that, and the number in the text alone."""
    number = getattr(error, "errno", None)
    said = (f"(os error {errno.ENOSPC})", f"code: {errno.ENOSPC},")
    return number in (errno.ENOSPC, errno.EDQUOT) or any(text in str(error) for text in said)


def _is_whole(shard: _Shard) -> bool:
    """Whether the shard is there, not cut short, and holds what it should."""
    try:
        with safe_open(shard.path, framework="pt") as file:
            return (file.metadata() or {}).get("identity") == shard.identity
    except (OSError, SafetensorError):
        return False


def _read(file: Any, responses: Sequence[Response], place: int) -> Sample:
    before = responses[:place]
    row = sum(len(one.prompt_ids) + len(one.output_ids) for one in before)
    top = sum(len(one.output_ids) for one in before)
    response = responses[place]
    tokens = torch.tensor(response.prompt_ids + response.output_ids)
    features = file.get_slice("features")[row : row + len(tokens)]
    ids = probabilities = None
    if "top_ids" in set(file.keys()):
        end = top + len(response.output_ids)
        ids, probabilities = file.get_slice("top_ids")[top:end], file.get_slice("top_logprobs")[top:end]
    return Sample(tokens, len(response.prompt_ids), features, ids, probabilities)
