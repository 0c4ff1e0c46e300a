"""Creates folders of versions atomically."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from areal_like.process.run_memory import make_folder_in_memory


@contextlib.contextmanager
def new_version(folder_root: Path, version: int, require: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yields a folder to write a version into, and renames it to its final name on success. A folder of that version
    left by an earlier attempt is replaced. `require` is called before that, as writing may take long."""
    make_folder_in_memory(folder_root)
    final = final_folder(folder_root, version)
    new, old = (folder_root / f".{final.name}.{os.getpid()}.{suffix}" for suffix in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)  # pids are reused
    new.mkdir(mode=0o700)
    try:
        yield new
        require()
        if final.exists():
            final.rename(old)
        new.rename(final)
    except OSError as error:
        require()  # the trainer of another launcher removes what is half written
        text = error.strerror or str(error)
        raise OSError(error.errno, f"version {version} of the weights cannot be written: {text}", str(final)) from error
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)


def final_folder(folder_root: Path, version: int) -> Path:
    return folder_root / f"v{version:06d}"
