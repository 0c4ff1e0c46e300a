"""Publications of a LoRA adapter: a folder that peft, vLLM and SGLang read, with an index for verification.

Only publishing needs torch. The index has one bucket for the tensors, and adapter_config.json as a bucket without any.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import xxhash

from areal_like.weights.bucket_files import Bytes, check_version, read_bucket, read_bucket_file, read_bytes
from areal_like.weights.buckets import TensorInfo, bucket_hash, file_header, file_order, publishable
from areal_like.weights.errors import BadWeights
from areal_like.weights.hashes import hash_of
from areal_like.weights.index import Bucket, Index, read_index, write_index
from areal_like.weights.lora import CONFIG_FILE, TENSORS_FILE, check_tensors, linear_layers, parse_adapter_config
from areal_like.weights.probe import Probe
from areal_like.weights.verify import DTYPE_OF_CODE
from areal_like.weights.version_folders import final_folder, new_version

if TYPE_CHECKING:
    from torch import Tensor


class AdapterFiles(NamedTuple):
    """An adapter as read from its folder. `contents` may be shared memory: copy what is kept."""

    config: dict[str, Any]
    infos: list[TensorInfo]
    contents: dict[str, Bytes]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {info.name: info.shape for info in self.infos}


class LoadedAdapter(NamedTuple):
    """A version of the weights that is an adapter, with verified hashes."""

    version: int
    files: AdapterFiles
    probe: Probe | None


def publish_adapter(
    folder_root: Path,
    version: int,
    tensors: Iterable[tuple[str, "Tensor"]],
    peft_config: Mapping[str, Any],
    probe: Probe | None,
    run_id: str,
    require: Callable[[], None] = lambda: None,
) -> Path:
    """Writes a version under a temporary name and renames it when it is complete. File names are peft's.
    `require` is called before the rename."""
    from areal_like.weights.fingerprint import describe_tensors

    infos, contents = describe_tensors(list(publishable(tensors)))
    ordered = file_order(infos)
    header = file_header(ordered)
    config = json.dumps(peft_config, indent=1, sort_keys=True).encode() + b"\n"
    with new_version(folder_root, version, require) as folder:
        with (folder / TENSORS_FILE).open("wb") as file:
            file.write(header)
            for info in ordered:
                file.write(contents[info.name])
            size = file.tell()
        (folder / CONFIG_FILE).write_bytes(config)
        buckets = [
            Bucket(TENSORS_FILE, size, bucket_hash(header, ordered), infos),
            Bucket(CONFIG_FILE, len(config), xxhash.xxh3_64_hexdigest(config), []),
        ]
        write_index(folder, Index(version, run_id, buckets, probe))
    return final_folder(folder_root, version)


def read_adapter(folder: Path, newer_than: int, run_id: str | None = None, version: int | None = None) -> LoadedAdapter:
    """Reads a version and verifies the hash of every tensor. Refuses it unless it is newer, of this run (None: of any)
    and the given `version` (None: any)."""
    index = read_index(folder)
    if version is not None and index.version != version:
        raise BadWeights(f"{folder} holds version {index.version} of the weights and not {version}")
    check_version(index, newer_than, run_id)
    buckets = {bucket.file: bucket for bucket in index.buckets}
    if set(buckets) != {TENSORS_FILE, CONFIG_FILE}:
        raise BadWeights(
            f"version {index.version} of the weights is not an adapter: {folder} holds {', '.join(sorted(buckets))}"
        )
    contents = read_bucket(folder, buckets[TENSORS_FILE], index.version)
    config = read_bucket_file(folder, buckets[CONFIG_FILE], index.version).tobytes()
    if xxhash.xxh3_64_hexdigest(config) != buckets[CONFIG_FILE].hash:
        raise BadWeights(f"version {index.version} of the weights: {CONFIG_FILE} is corrupted: its hash is another")
    infos = buckets[TENSORS_FILE].tensors
    return LoadedAdapter(index.version, AdapterFiles(orjson.loads(config), infos, contents), index.probe)


def check_adapter(publication: LoadedAdapter, checkpoint: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Refuses an adapter for another model than the one with these tensors (name -> shape and type). For servers that
    pass it to an external engine; the embedded engine checks the model's layers itself."""
    whose = f"version {publication.version} of the weights"
    check_tensors(
        parse_adapter_config(publication.files.config, whose),
        publication.files.shapes,
        linear_layers(checkpoint),
        (),
        whose,
    )


def read_peft_folder(folder: Path) -> AdapterFiles:
    """Reads an adapter as peft saves it, from any source. It has no hashes to verify."""
    config, file = folder / CONFIG_FILE, folder / TENSORS_FILE
    for path in (config, file):
        if not path.is_file():
            raise BadWeights(f"{folder}: is not an adapter ({path.name} is missing)")
    try:
        peft_config = orjson.loads(config.read_bytes())
        content = read_bytes(file, file.stat().st_size)
        infos, contents = _split_tensors(content)
    except (KeyError, TypeError, ValueError) as error:
        raise BadWeights(f"{folder}: is damaged: {type(error).__name__}: {error}") from error
    return AdapterFiles(peft_config, infos, contents)


def _split_tensors(content: Bytes) -> tuple[list[TensorInfo], dict[str, Bytes]]:
    """Tensors of a safetensors file."""
    length = 8 + int.from_bytes(content[:8].tobytes(), "little")
    infos, contents = [], {}
    for name, entry in orjson.loads(content[8:length].tobytes()).items():
        if name == "__metadata__":
            continue
        dtype, shape = DTYPE_OF_CODE[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        contents[name] = content[length + start : length + end]
        infos.append(TensorInfo(name, dtype, shape, hash_of(dtype, shape, contents[name].data)))
        if len(contents[name]) != infos[-1].nbytes:
            raise ValueError(f"tensor {name} has {len(contents[name])} bytes and not {infos[-1].nbytes}")
    return infos, contents
