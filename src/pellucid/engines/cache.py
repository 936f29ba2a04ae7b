"""Compiled programs kept on disk, so that the next process need not compile them again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
from pathlib import Path
from typing import Any, cast

__all__ = ["cache_folder", "keep_programs"]

KEPT = 600  # files, about 100 kB each: of most programs there are two


def keep_programs() -> Path | None:
    """Have JAX keep what it compiles in `cache_folder`, which is returned, unless it was told another place or to keep nothing."""
    import jax

    folder, settings = cache_folder(), cast(Any, jax.config)
    if folder is None or settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache:
        return None
    settings.update("jax_compilation_cache_dir", str(folder))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    settings.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with contextlib.suppress(OSError):  # another process may have been faster
        for old in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)[:-KEPT]:
            old.unlink()
    return folder


def cache_folder() -> Path | None:
    """The user's own folder for programs compiled for this processor; None where nobody else can be kept out of it.

    A program is machine code: it must come from the user, and run on this kind of processor. The environment variable
    PELLUCID_CACHE names another folder, or is "off".
    """
    wanted = os.environ.get("PELLUCID_CACHE", "")
    if wanted == "off" or not hasattr(os, "getuid"):
        return None
    try:
        top = Path(wanted) if wanted else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pellucid"
        folder = top.absolute() / f"programs-{processor()}"
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if private(folder.parent) and private(folder) and os.access(folder, os.W_OK) else None
    except (OSError, RuntimeError):  # no home, no room, no permission
        return None


def private(folder: Path) -> bool:
    """Whether a folder is a real one, the user's, and nobody else may write into it."""
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def processor() -> str:
    """A name for what this processor can do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    able = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}) or lines[:1]
    return hashlib.sha256("\n".join([platform.machine(), *able]).encode()).hexdigest()[:16]
