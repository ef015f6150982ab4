"""Builds the compiled core where a C compiler is at hand. Without one the package is plain Python.
Puts the `.proto` files into the wheel, as `jetstream_protocol/proto`.

JETSTREAM_REQUIRE_COMPILED=1 makes a failed build an error: for those who build wheels.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = "proto"
MODULES = (
    "jetstream_protocol._murmur2",
    "jetstream_protocol._slices",
    "jetstream_server.ingest.nats._columns",
)


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the extension beside its source: there an editable install finds it too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        if version == "standard":
            # For clients in other languages. An editable install has them where they are.
            build_data["force_include"][PROTO] = f"jetstream_protocol/{PROTO}"
        try:
            with tempfile.TemporaryDirectory() as scratch:
                built = [compile_extension(Path(self.root), name, scratch) for name in MODULES]
        except (Exception, SystemExit) as error:  # Compilers fail in many ways.
            if os.environ.get("JETSTREAM_REQUIRE_COMPILED"):
                raise
            print(f"nothing is compiled, plain Python is used: {error}", file=sys.stderr)
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_extension(root: Path, name: str, scratch: str) -> Path:
    """Compile one module; returns the extension, which lies beside its source."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    source = root.joinpath("src", *name.split(".")).with_suffix(".pyx")
    extension = Extension(name, [str(source)], extra_compile_args=["-O3"])
    distribution = Distribution(
        {"ext_modules": cythonize([extension], build_dir=scratch, quiet=True)}
    )
    command = build_ext(distribution)
    command.ensure_finalized()
    command.build_temp = command.build_lib = scratch
    command.run()
    built = Path(command.get_ext_fullpath(name))
    final = source.with_name(built.name)
    temporary = final.with_suffix(".tmp")
    temporary.write_bytes(built.read_bytes())
    temporary.chmod(0o755)
    temporary.replace(final)  # A process that has loaded the old one keeps it.
    return final
