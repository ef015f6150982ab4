"""Builds the compiled core where a C compiler is at hand. Without one the package is plain Python.
Puts the `.proto` files into the wheel, as `jetstream_protocol/proto`.

What is compiled uses the stable ABI of Python 3.11 only: one file serves that version and all later
ones (docs/adr/0032-wheels.md).

JETSTREAM_REQUIRE_COMPILED=1 makes a failed build an error: for those who build wheels.
JETSTREAM_WHEEL_PLATFORM=manylinux_2_17_aarch64, for example, makes a wheel for that platform, with
the compiler that CC names; so `scripts/wheels` does it. Then a failed build is an error, too.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = "proto"
MODULES = (
    "jetstream_protocol._murmur2",
    "jetstream_protocol._slices",
    "jetstream_protocol._typed_json",
    "jetstream_server.ingest.nats._columns",
    "jetstream_server.jetstream_api._delivered",
)
STABLE_ABI = "cp311"
STABLE_ABI_NUMBER = "0x030B0000"


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the extension beside its source: there an editable install finds it too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        if version == "standard":
            # For clients in other languages. An editable install has them where they are.
            build_data["force_include"][PROTO] = f"jetstream_protocol/{PROTO}"
        platform = os.environ.get("JETSTREAM_WHEEL_PLATFORM")
        try:
            with tempfile.TemporaryDirectory() as scratch:
                built = [
                    compile_extension(Path(self.root), name, scratch, bool(platform))
                    for name in MODULES
                ]
        except (Exception, SystemExit) as error:  # Compilers fail in many ways.
            if platform or os.environ.get("JETSTREAM_REQUIRE_COMPILED"):
                raise
            print(f"nothing is compiled, plain Python is used: {error}", file=sys.stderr)
            for name in MODULES:  # Those of an earlier build may do something else than the source.
                source = Path(self.root, "src", *name.split("."))
                for earlier in source.parent.glob(f"{source.name}.*.so"):
                    earlier.unlink()
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]
        build_data["pure_python"] = False
        if platform:
            build_data["tag"] = f"{STABLE_ABI}-abi3-{platform}"
        else:
            build_data["infer_tag"] = True


def compile_extension(root: Path, name: str, scratch: str, by_cc_alone: bool) -> Path:
    """Compile one module; returns the extension, which lies beside its source.

    by_cc_alone: by the command in CC and without the options of this machine's Python, which are
    for this machine.
    """
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    class BuildExtension(build_ext):
        def build_extensions(self) -> None:
            if by_cc_alone:
                cc = os.environ["CC"]
                self.compiler.set_executables(
                    compiler_so=f"{cc} -fPIC -DNDEBUG", linker_so=f"{cc} -shared -s"
                )
            super().build_extensions()

    source = root.joinpath("src", *name.split(".")).with_suffix(".pyx")
    stable = not sysconfig.get_config_var("Py_GIL_DISABLED")
    if by_cc_alone and not stable:
        raise RuntimeError("free-threaded Python has no stable ABI: take another one for wheels")
    extension = Extension(
        name,
        [os.path.relpath(source)],  # It is in the file: an absolute one would tell where.
        extra_compile_args=["-O3"],
        define_macros=[("Py_LIMITED_API", STABLE_ABI_NUMBER)] if stable else [],
        py_limited_api=stable,
    )
    distribution = Distribution(
        {"ext_modules": cythonize([extension], build_dir=scratch, quiet=True)}
    )
    command = BuildExtension(distribution)
    command.ensure_finalized()
    command.build_temp = command.build_lib = scratch
    command.run()
    built = Path(command.get_ext_fullpath(name))
    final = source.with_name(built.name)
    temporary = final.with_suffix(".tmp")
    temporary.write_bytes(built.read_bytes())
    temporary.chmod(0o755)
    temporary.replace(final)  # A process that has loaded the old one keeps it.
    for other in source.parent.glob(f"{source.stem}.*.so"):
        if other != final:
            other.unlink()  # An older build for one version of Python, which would be found first.
    return final
