"""The strict door: everything from outside this process enters as bounded, validated data, or as one `DoorError`.

Outside are workers, containers, machines behind ssh, other tools, caches, snapshots, settings and baselines. Whoever
wrote their bytes may have wanted this process to hang, to run out of memory, or to end with a traceback.

The public entry points raise `DoorError`, a ValueError whose text is one sentence, and nothing else:

- `json_values.read_json` reads one JSON document with bounds on bytes, depth and number of values;
  `json_values.read_lines` reads JSON lines one by one.
- `files.read_file` reads a regular file of a bounded size; `files.read_below` reads a file that an answer names, below
  a folder, without following any link, after its size was compared with the announced one.
- `packing.inflate` decompresses bytes whose plain size is known.
- `models.validated` makes a pydantic model of JSON values, and `models.parsed` of JSON text.
- `fields` holds the types of fields: indices, counts, seconds, texts.

What is read this way fits the request only after a further comparison, which belongs to the request:
`device.answer.check_result` for a job, `device.remote.serialization.unpack_result` for a batch,
`device.assemble.assemble` and `toolchain.events.Events.parse` for the events of workers.
"""

from pytest_nvfp4.isolation.door.error import DoorError

__all__ = ["DoorError"]
