import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    argv = list(sys.argv)
    yield
    assert sys.argv == argv
    assert not GlobalHydra.instance().is_initialized()
    assert not HydraConfig.initialized()
