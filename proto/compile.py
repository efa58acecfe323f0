"""Compile every `.proto` next to this script into `src/tidegate/proto/` (run it after each change).

    python proto/compile.py

Needs grpcio-tools. The result is committed, so that installing Tidegate needs no compiler. Sources are
given the virtual path `tidegate/proto/`, which makes the generated imports those of the package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
SERVICES = frozenset({"pdpb", "tikvpb", "cdcpb", "etcdserverpb", "keyspacepb", "meta_storagepb", "tidegate"})


def main() -> int:
    """Generate messages for all files and stubs for those that declare a service."""
    out = HERE.parent / "src"
    for source in sorted(HERE.glob("*.proto")):
        arguments = ["protoc", f"-Itidegate/proto={HERE}", f"--python_out={out}", f"--pyi_out={out}"]
        if source.stem in SERVICES:
            arguments.append(f"--grpc_python_out={out}")
        if code := protoc.main([*arguments, str(source)]):
            return int(code)
    for types in (out / "tidegate/proto").glob("*_pb2.pyi"):
        types.write_text(without_keywords(types.read_text()))
    return 0


def without_keywords(types: str) -> str:
    """Type stubs without the values of enums that are named None, which is no name in Python.

    Code names them `Assertion.Value("None")`.
    """
    return re.sub(r"^ *None: .*\n", "", types, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
