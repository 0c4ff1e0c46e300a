"""The process of one environment: `python host/ DESCRIPTOR`, with the socket that it was given."""

import importlib
import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, name = Path(__file__).resolve().parent, "areal_like_environment_host"
    sys.path[:] = [each for each in sys.path if Path(each) != folder]  # its names are not those of packages
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    sys.modules[name] = importlib.util.module_from_spec(spec)
    main = importlib.import_module(f"{name}.service").main
    main(int(sys.argv[1]))
