"""Files from elsewhere, kept in a folder, and looked at before they count: whole, and with the hash that their name or their place promises."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from calque.base.config import settings
from calque.base.errors import CheckpointError, CheckpointNotFoundError
from calque.base.text import shown
from calque.io.checkpoint import load


class _Chosen:
    """The folder that was chosen."""

    folder: str | None = None


def get_dir() -> str:
    """The folder for downloads: `hub` beside the cache of compiled programs, unless `set_dir` chose another."""
    return _Chosen.folder or str(settings.cache_dir.parent / "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Keep downloads in a folder."""
    _Chosen.folder = os.path.expanduser(os.fspath(d))


def download_url_to_file(url: str, dst: Any, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Fetch a file. hash_prefix: how its SHA-256 begins; else `RuntimeError`. It is there whole or not at all."""
    target = Path(os.path.expanduser(dst))
    digest = hashlib.sha256()
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(handle, "wb") as file, urllib.request.urlopen(url) as answer:
            while chunk := answer.read(1 << 17):
                digest.update(chunk)
                file.write(chunk)
        if hash_prefix is not None and not digest.hexdigest().startswith(hash_prefix):
            raise RuntimeError(f"[hub] invalid hash value (expected {hash_prefix!r}, got {digest.hexdigest()!r}); fetch it again")
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.remove(part)


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True, check_hash: bool = False, file_name: str | None = None,
    weights_only: bool = True,
) -> Any:  # fmt: skip
    """`calque.load` of a file that is fetched once and kept in `model_dir` (`get_dir()/checkpoints`). check_hash: its name ends in -<hash>."""
    folder = Path(model_dir) if model_dir is not None else Path(get_dir()) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / (file_name or os.path.basename(urlparse(url).path))
    if not target.exists():
        wanted = target.stem.rpartition("-")[2] if check_hash else None
        download_url_to_file(url, target, wanted, progress)
    return load(str(target), map_location=map_location)


def _checked(file: Path, promised: str) -> Path:
    """The file, if its SHA-256 begins as promised."""
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if not digest.hexdigest().startswith(promised):
        raise CheckpointError(f"[weights] expected a file whose SHA-256 begins with {promised}, got {str(file)!r} which has another; remove it")
    return file


def cached_url(url: str) -> Path:
    """The file of an address: the one that is kept here or by PyTorch, or else it is fetched. Its name ends in -<hash>, which is checked each time.

    Raises CheckpointError for another hash, and CheckpointNotFoundError, which says where to put the file, if nothing can be fetched.
    """
    name = os.path.basename(urlparse(url).path)
    found = re.search(r"-([0-9a-f]{8,64})\.\w+$", name)
    promised = found[1] if found else ""
    target = Path(get_dir()) / "checkpoints" / name
    for file in (target, Path.home() / ".cache/torch/hub/checkpoints" / name):
        if file.is_file():
            return _checked(file, promised)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        download_url_to_file(url, target, promised or None)
    except OSError as error:  # what urllib raises, too
        why = getattr(error, "reason", error)
        raise CheckpointNotFoundError(f"[weights] expected {name}, got no answer from {url} ({why}); offline, put that file at {target}") from error
    return target


def cached_hub(name: str) -> Path:
    """The weights of a model that the Hugging Face Hub's own client fetched: `owner/name`, its newest model.safetensors. Its hash is checked
    where the client keeps it. Nothing is fetched."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or ".." in name:
        raise CheckpointNotFoundError(f"[weights] expected a file, an address, or owner/name of the Hugging Face Hub, got {shown(name)}")
    folder = Path.home() / ".cache/huggingface/hub" / f"models--{name.replace('/', '--')}"
    files = sorted(folder.glob("snapshots/*/model.safetensors"), key=lambda file: file.lstat().st_mtime)
    if not files:
        how = f"hf download {name} model.safetensors"
        raise CheckpointNotFoundError(f"[weights] expected model.safetensors of {name} in {folder}, got none; where there is a network: {how}")
    blob = files[-1].resolve()
    return _checked(files[-1], blob.name if re.fullmatch(r"[0-9a-f]{64}", blob.name) else "")
