"""Make messages.py and messages.pyi of messaging.proto: a part of `make generate`.

The classes are made at import from a serialized descriptor, in a descriptor pool of their own. The
usual generated code would register the names of the protocol in the pool of the process, where the
official client registers them too, and it would need a protobuf at least as new as the compiler's.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
ROOM = ROOT / "src/sparrowmq/grpc_service"
SOURCE = ROOM / "messaging.proto"
MADE = "# Made of messaging.proto by `make generate`; change that file."
PACKAGE = "apache.rocketmq.v2"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    _FIELD.TYPE_STRING: "str",
    _FIELD.TYPE_BYTES: "bytes",
    _FIELD.TYPE_BOOL: "bool",
    _FIELD.TYPE_FLOAT: "float",
    _FIELD.TYPE_INT32: "int",
    _FIELD.TYPE_INT64: "int",
    # A newer peer may send a number that our enumeration lacks.
    _FIELD.TYPE_ENUM: "int",
}
_CLASSES = '''
"""The messages of RocketMQ 5's gRPC interface, as type checkers see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from enum import IntEnum
from typing import Any, NamedTuple, Self, TypeVar

Item = TypeVar("Item")

class Method(NamedTuple):
    name: str
    request: type[WireMessage]
    response: type[WireMessage]
    streams_requests: bool
    streams_responses: bool

SERVICE: str
METHODS: tuple[Method, ...]

class WireMessage:
    def __init__(self, **fields: Any) -> None: ...
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def HasField(self, name: str) -> bool: ...
    def WhichOneof(self, name: str) -> str | None: ...
    def ClearField(self, name: str) -> None: ...
    def CopyFrom(self, other: Self) -> None: ...
    def ByteSize(self) -> int: ...

class Repeated(list[Item]):
    def add(self, **fields: Any) -> Item: ...

class Timestamp(WireMessage):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...

class Duration(WireMessage):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...
'''


def compile_source() -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of the source and of its imports."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "descriptors"
        included = Path(protoc.__file__).parent / "_proto"
        arguments = [f"-I{ROOM}", f"-I{included}", "--include_imports"]
        code = protoc.main(["protoc", *arguments, f"--descriptor_set_out={out}", SOURCE.name])
        if code != 0:
            raise SystemExit(f"{SOURCE} cannot be compiled")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def make_module(files: descriptor_pb2.FileDescriptorSet) -> str:
    """Return the module that makes the classes."""
    own = files.file[-1]
    # Every version of protobuf serializes these messages in one way, and without the JSON names.
    packed = base64.b64encode(files.SerializeToString(deterministic=True)).decode()
    classes = ["Timestamp", "Duration", *(message.name for message in own.message_type)]
    names = {"Timestamp": "google.protobuf", "Duration": "google.protobuf"}
    lines = [
        MADE,
        '"""The messages of RocketMQ 5\'s gRPC interface, in a descriptor pool of their own."""',
        "",
        "from __future__ import annotations",
        "",
        "import base64",
        "from enum import IntEnum",
        "from typing import Any, NamedTuple",
        "",
        "from google.protobuf import descriptor_pb2, descriptor_pool, message_factory",
        "",
        "_POOL = descriptor_pool.DescriptorPool()",
        "for _file in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(",
        '    """',
        *textwrap.wrap(packed, 96),
        '"""',
        ")).file:",
        "    _POOL.Add(_file)",
        "",
        "",
        "def _find(name: str) -> Any:",
        "    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))",
        "",
        "",
        "def _enumerate(name: str) -> Any:",
        f'    values = _POOL.FindEnumTypeByName(f"{PACKAGE}.{{name}}").values',
        "    return IntEnum(name, {value.name: value.number for value in values}, module=__name__)",
        "",
        "",
        *(f'{enum.name} = _enumerate("{enum.name}")' for enum in own.enum_type),
        *(f'{name} = _find("{names.get(name, PACKAGE)}.{name}")' for name in classes),
        "",
        "",
        "class Method(NamedTuple):",
        '    """One method of the service."""',
        "",
        "    name: str",
        "    request: Any",
        "    response: Any",
        "    streams_requests: bool",
        "    streams_responses: bool",
        "",
        "",
        f'SERVICE = "{PACKAGE}.{own.service[0].name}"',
        "METHODS = (",
        *(f"    {describe(method)}," for method in own.service[0].method),
        ")",
    ]
    return "\n".join(lines) + "\n"


def describe(method: descriptor_pb2.MethodDescriptorProto) -> str:
    """Return the row of a method."""
    request, response = (
        name.rpartition(".")[2] for name in (method.input_type, method.output_type)
    )
    streams = f"{method.client_streaming}, {method.server_streaming}"
    return f'Method("{method.name}", {request}, {response}, {streams})'


def make_types(files: descriptor_pb2.FileDescriptorSet) -> str:
    """Return the types of the classes."""
    own = files.file[-1]
    lines = [MADE, *_CLASSES.strip().splitlines()]
    for enum in own.enum_type:
        values = [f"    {value.name} = {value.number}" for value in enum.value]
        lines += ["", f"class {enum.name}(IntEnum):", *values]
    for message in own.message_type:
        lines += ["", f"class {message.name}(WireMessage):", *describe_fields(message)]
    return "\n".join(lines) + "\n"


def describe_fields(message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
    """Yield the attributes of a message, and its constructor."""
    maps = {nested.name for nested in message.nested_type if nested.options.map_entry}
    arguments = []
    for field in message.field:
        kind = _SCALARS.get(field.type) or field.type_name.rpartition(".")[2]
        given = kind
        if kind in maps:
            kind, given = "MutableMapping[str, str]", "Mapping[str, str]"
        elif field.label == _FIELD.LABEL_REPEATED:
            kind, given = f"Repeated[{kind}]", f"Iterable[{kind}]"
        yield f"    {field.name}: {kind}"
        arguments.append(f"        {field.name}: {given} | None = ...,")
    yield from (
        "    def __init__(",
        "        self,",
        "        *,",
        *arguments,
        "    ) -> None: ...",
    )


def main(arguments: list[str]) -> int:
    """Write the files, or compare them."""
    files: Any = compile_source()
    made = {ROOM / "messages.py": make_module(files), ROOM / "messages.pyi": make_types(files)}
    changed = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.write_text(made[path])
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
